"""`digits-mix`: the digit tasks in turn; the built-in policy's cold start is trained on it."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.tasks.base import Demonstration, Range, ScoredTaskConfig, Task, Verdict
from selfverify.tasks.digits.digits_locate import DigitsLocate, DigitsLocateConfig
from selfverify.tasks.digits.digits_pick import REASONING, DigitsPick, DigitsPickConfig, Reasoning
from selfverify.tasks.digits.digits_shown import DigitsShown, DigitsShownConfig
from selfverify.tasks.digits.digits_sum import DigitsSum, DigitsSumConfig

Part = DigitsPick | DigitsSum | DigitsLocate | DigitsShown


class DigitsMixConfig(ScoredTaskConfig):
    """How often each task comes, and how hard its problems are."""

    pick: int = Field(4, ge=0, description="Shares of digits-pick problems.")
    sum: int = Field(2, ge=0, description="Shares of digits-sum problems.")
    locate: int = Field(2, ge=0, description="Shares of digits-locate problems.")
    shown: int = Field(0, ge=0, description="Shares of digits-shown problems.")
    sum_digits: tuple[int, int] = Field((1, 6), description="Fewest and most digits of a digits-sum problem.")
    sum_noise: Range = Field((0.0, 0.35), description="Noise of the digits-sum problems.")
    locate_digits: int = Field(3, ge=1, le=9, description="Digits on a digits-locate canvas.")
    pick_reasoning: Reasoning = Field("sum", description=f"For digits-pick problems. {REASONING}")
    locate_noise: Range = Field((0.0, 0.2), description="Noise of the digits-locate problems.")

    @model_validator(mode="after")
    def _check(self) -> DigitsMixConfig:
        if not self.pick + self.sum + self.locate + self.shown:
            raise ValueError("pick, sum, locate and shown are all 0; at least one task has to come")
        fewest, most = self.sum_digits
        if not 1 <= fewest <= most <= 12:
            raise ValueError(f"sum_digits is {list(self.sum_digits)}, not [fewest, most] within 1 to 12")
        return self


class DigitsMix(Task):
    """Problems of all digit tasks in a fixed rotation; each is judged by its own task."""

    name = "digits-mix"
    summary = "the other digit tasks in turn (for the cold start)"
    config_class = DigitsMixConfig
    config: DigitsMixConfig

    def __init__(self, config: DigitsMixConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        fewest, most = c.sum_digits
        sums = DigitsSumConfig(
            count=most, fewest=fewest, columns=min(most, 3), noise=c.sum_noise, score=c.score
        )
        boxes = DigitsLocateConfig(count=c.locate_digits, noise=c.locate_noise, score=c.score)
        parts: tuple[Part, ...] = (
            DigitsPick(DigitsPickConfig(score=c.score, reasoning=c.pick_reasoning)),
            DigitsSum(sums),
            DigitsLocate(boxes),
            DigitsShown(DigitsShownConfig(score=c.score)),
        )
        shares = (c.pick, c.sum, c.locate, c.shown)
        self.rotation = [part for part, share in zip(parts, shares, strict=True) for _ in range(share)]
        self.by_name = {part.name: part for part in parts}

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
        return self.rotation[index % len(self.rotation)].problem(split, seed, index)

    def _own(self, problem: Problem) -> Part:
        return self.by_name[problem.id.split("/", 1)[0]]

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """See `Task.judge`."""
        return self._own(problem).judge(problem, tagged)

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """See `Task.demonstrate`."""
        return self._own(problem).demonstrate(problem, rng, wrong)
