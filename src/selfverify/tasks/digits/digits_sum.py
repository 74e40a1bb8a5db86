"""`digits-sum`: what do the digits shown add up to?

This task shows where verification does not help: a policy errs because noise makes it misread a digit, all
samples of a problem misread the same one, and no verifier can do much better than a majority vote.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.tasks.base import (
    Demonstration,
    Range,
    ScoredTaskConfig,
    Task,
    Verdict,
    judge_integer,
    problem_rng,
)
from selfverify.tasks.digits.canvas import digit_bank, draw_grid


class DigitsSumConfig(ScoredTaskConfig):
    """Difficulty of `digits-sum`."""

    count: int = Field(4, ge=1, le=12, description="Digits shown, at most.")
    fewest: int | None = Field(None, ge=1, description="Digits shown, at least; None means always `count`.")
    columns: int = Field(3, ge=1, le=12, description="Digits per row.")
    cell: int = Field(16, ge=8, le=64, description="Side of a digit's cell in pixels.")
    noise: Range = Field((0.0, 0.35), description="Range of the noise's standard deviation.")

    @model_validator(mode="after")
    def _check(self) -> DigitsSumConfig:
        if self.fewest is not None and self.fewest > self.count:
            raise ValueError(f"fewest is {self.fewest}, more than count={self.count}")
        return self


class DigitsSum(Task):
    """An answer is right when it equals the sum of all digits shown."""

    name = "digits-sum"
    summary = "the sum of the digits shown (discrete)"
    config_class = DigitsSumConfig
    config: DigitsSumConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
        c = self.config
        rng = problem_rng(split, seed, index)
        count = c.count if c.fewest is None else int(rng.integers(c.fewest, c.count + 1))
        digits = [int(d) for d in rng.integers(0, 10, count)]
        noise = float(rng.uniform(*c.noise))
        image = draw_grid(digits, c.columns, c.cell, noise, digit_bank(split), rng)
        question = "What do the digits shown add up to?"
        return self.posed(split, seed, index, question, sum(digits), image, digits=digits, noise=noise)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """See `judge_integer`."""
        return judge_integer(problem.target, tagged, 9 * self.config.count)

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Read the digits in order and add them; a wrong one misreads a digit or two (as context)."""
        digits = list(problem.meta["digits"])
        if wrong:
            for _ in range(int(rng.integers(1, 3))):
                digits[rng.integers(len(digits))] = int(rng.integers(0, 10))
        total = sum(digits)
        sums = "+".join(map(str, digits))
        rest = f"={total}</think><answer>{total}</answer>"
        return Demonstration.of(f"<think>{sums}", rest, wrong, float(total == problem.target))
