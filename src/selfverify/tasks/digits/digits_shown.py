"""`digits-shown`: which digits from 0 to 9 are not shown?

It teaches a cold start to compare a digit that is written with those that were read: reading comes first,
then all ten digits in any order, with a mark where one was not read, as `digits-pick` marks picks (`marked`).
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import ANSWER, CONTEXT
from selfverify.tasks.base import (
    UNREADABLE,
    Demonstration,
    Range,
    ScoredTaskConfig,
    Task,
    Verdict,
    problem_rng,
    read_integers,
)
from selfverify.tasks.digits.canvas import digit_bank, draw_grid


class DigitsShownConfig(ScoredTaskConfig):
    """Difficulty of `digits-shown`."""

    count: int = Field(6, ge=1, le=12, description="Digits shown.")
    columns: int = Field(3, ge=1, le=12, description="Digits per row.")
    cell: int = Field(16, ge=8, le=64, description="Side of each digit's cell in pixels.")
    noise: Range = Field((0.0, 0.15), description="Range of the noise's standard deviation.")


class DigitsShown(Task):
    """An answer is right when it names the digits that are not shown, each once, in any order, and no others.

    It may be empty: twelve digits may show all ten.
    """

    name = "digits-shown"
    summary = "which digits are not shown (discrete)"
    config_class = DigitsShownConfig
    config: DigitsShownConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
        c = self.config
        rng = problem_rng(split, seed, index)
        digits = [int(d) for d in rng.integers(0, 10, c.count)]
        noise = float(rng.uniform(*c.noise))
        image = draw_grid(digits, c.columns, c.cell, noise, digit_bank(split), rng)
        absent = sorted(set(range(10)) - set(digits))
        question = "Which digits from 0 to 9 are not shown?"
        return self.posed(split, seed, index, question, absent, image, digits=digits, noise=noise)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward the digits that are not shown, and no others, by 1, anything else by 0."""
        text = tagged.fields.get("answer", "")
        named = [] if not text.strip() else read_integers(text, len(text.replace(",", " ").split()), 9)
        if named is None or len(set(named)) < len(named):
            return UNREADABLE
        named.sort()
        correct = named == problem.target
        return Verdict(float(correct), correct, named, " ".join(map(str, named)))

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Read all digits, then go through 0 to 9 in any order and mark those that were not read.

        The order is context. A wrong one leaves a mark out, or has one too many, as context, too, and sums
        its own marks up.
        """
        read = problem.meta["digits"]
        absent = set(problem.target)
        marked = absent ^ ({int(rng.integers(10))} if wrong else set())
        pieces = [(ANSWER, f"<think>{''.join(map(str, read))}:")]
        order = [int(digit) for digit in rng.permutation(10)]
        for digit in order:
            mistaken = (digit in marked) != (digit in absent)
            mark = "?+" if digit in marked else "+"
            pieces += [(CONTEXT, str(digit)), (CONTEXT if mistaken else ANSWER, mark)]
        answer = " ".join(str(digit) for digit in order if digit in marked)
        return Demonstration(
            [*pieces, (ANSWER, f"</think><answer>{answer}</answer>")], float(marked == absent)
        )
