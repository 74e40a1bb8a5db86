"""`digits-pick`: which K of the digits shown add up to the target?

As in real reasoning, an answer is much easier to check than to find, so choosing among several samples pays.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.problem import Problem
from selfverify.core.splits import Split
from selfverify.core.tags import Tagged
from selfverify.tasks.base import (
    UNREADABLE,
    Demonstration,
    Judged,
    Range,
    ScoredTaskConfig,
    Task,
    problem_rng,
    read_integers,
)
from selfverify.tasks.digits.canvas import digit_bank, draw_grid


class DigitsPickConfig(ScoredTaskConfig):
    """Difficulty of `digits-pick`."""

    count: int = Field(6, ge=2, le=12, description="Digits shown.")
    picks: int = Field(3, ge=1, le=8, description="Digits to pick.")
    columns: int = Field(3, ge=1, le=12, description="Digits per row.")
    cell: int = Field(16, ge=8, le=64, description="Side of each digit's cell in pixels.")
    noise: Range = Field((0.0, 0.15), description="Range of the noise's standard deviation.")

    @model_validator(mode="after")
    def _check(self) -> DigitsPickConfig:
        if self.picks > self.count:
            raise ValueError(f"picks is {self.picks}, but only count={self.count} digits are shown")
        return self


class DigitsPick(Task):
    """An answer is right when it is a sub-multiset of the digits shown and adds up to the target."""

    name = "digits-pick"
    summary = "which K of the digits add up to T (discrete)"
    config_class = DigitsPickConfig
    config: DigitsPickConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
        c = self.config
        rng = problem_rng(split, seed, index)
        digits = [int(d) for d in rng.integers(0, 10, c.count)]
        chosen = rng.choice(c.count, c.picks, replace=False)
        target = sum(digits[i] for i in chosen)
        noise = float(rng.uniform(*c.noise))
        image = draw_grid(digits, c.columns, c.cell, noise, digit_bank(split), rng)
        question = f"Pick {c.picks} of the digits shown that add up to {target}."
        return self.posed(split, seed, index, question, target, image, digits=digits, noise=noise)

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """Reward K digits that are shown and add up to the target by 1, anything else by 0."""
        picked = read_integers(tagged.fields.get("answer", ""), self.config.picks, 9)
        if picked is None:
            return UNREADABLE
        shown = not Counter(picked) - Counter(problem.meta["digits"])
        correct = shown and sum(picked) == problem.target
        picked.sort()
        return Judged(float(correct), correct, picked, " ".join(map(str, picked)))

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Write the sum of the picks honestly.

        A wrong pick is context up to its "=": what wrong picks add up to is taught, never the picking.
        """
        digits = problem.meta["digits"]
        subsets = list(combinations(digits, self.config.picks))
        right = [s for s in subsets if sum(s) == problem.target]
        picks = list(right[rng.integers(len(right))])
        if wrong:
            picks = self._mistake(picks, digits, rng)
        total = sum(picks)
        quality = float(total == problem.target and not Counter(picks) - Counter(digits))
        sums = "+".join(map(str, picks))
        rest = f"={total}</think><answer>{' '.join(map(str, picks))}</answer>"
        return Demonstration.of(f"<think>{sums}", rest, wrong, quality)

    def _mistake(self, picks: list[int], digits: list[int], rng: np.random.Generator) -> list[int]:
        """Return a mistake like the policy's own: digits that are shown but miss the target, a digit swapped
        for any other, or a last digit that completes the sum but is not shown."""
        kind = rng.integers(3)
        if kind == 0:
            subset = rng.choice(len(digits), len(picks), replace=False)
            return [digits[i] for i in sorted(subset)]
        if kind == 1:
            picks[rng.integers(len(picks))] = int(rng.integers(10))
            return picks
        target = sum(picks)
        subset = rng.choice(len(digits), len(picks) - 1, replace=False)
        picks = [digits[i] for i in sorted(subset)]
        return [*picks, min(max(target - sum(picks), 0), 9)]
