"""Which K of the digits shown add up to a target (`digits-pick`), and all digit tasks (`digits-mix`)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.errors import DataError
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
from selfverify.tasks.digits import (
    DigitsLocate,
    DigitsLocateConfig,
    DigitsShown,
    DigitsShownConfig,
    DigitsSum,
    DigitsSumConfig,
    digit_bank,
    draw_grid,
)

WRONG_SUM, NOT_SHOWN = "wrong sum", "digit not shown"
NEITHER = f"{WRONG_SUM}, {NOT_SHOWN}"

Reasoning = Literal["sum", "read", "marked"]
REASONING = (
    "What demonstrations write before the answer: the picks and their `sum`; first every digit shown in "
    "reading order (`read`), so that picks can be checked in the text; and then also a `?` behind each pick "
    "that is not among these (`marked`)."
)

_TRIES, _AT_ONCE = 256, 256
"""How often digits are drawn for one problem, and how many sets of them at once, until its target can be had
in as many ways as are wanted."""


class DigitsPickConfig(DigitsShownConfig):
    """Difficulty of `digits-pick`."""

    count: int = Field(6, ge=2, le=12)
    """Digits shown."""

    picks: int = Field(3, ge=1, le=8)
    """Digits to pick."""

    ways: tuple[Annotated[int, Field(ge=1)], int] | None = None
    """Fewest and most of the ways to pick, place by place, that a problem's target can be had in: few are
    hard to find, many are easy. null takes problems as they come."""

    reasoning: Reasoning = Field("sum", description=REASONING)

    @model_validator(mode="after")
    def _check(self) -> DigitsPickConfig:
        if self.picks > self.count:
            raise ValueError(f"picks is {self.picks}, but only count={self.count} digits are shown")
        if self.ways is not None:
            fewest, most = self.ways
            if fewest > most:
                raise ValueError(f"ways is [fewest, most], not {list(self.ways)}")
            every = comb(self.count, self.picks)
            if fewest > every:
                raise ValueError(
                    f"ways begins at {fewest}, but {self.picks} of {self.count} digits can be picked in "
                    f"{every} ways only"
                )
        return self


class DigitsPick(Task):
    """An answer is right when it is a sub-multiset of the digits shown and adds up to the target.

    As in real reasoning, an answer is much easier to check than to find, so choosing among several samples
    pays.
    """

    name = "digits-pick"
    summary = "which K of the digits add up to T (discrete)"
    config_class = DigitsPickConfig
    config: DigitsPickConfig
    errors = (WRONG_SUM, NOT_SHOWN, NEITHER)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        c = self.config
        rng = problem_rng(split, seed, index)
        digits, target = self._drawn(rng)
        noise = float(rng.uniform(*c.noise))
        image = draw_grid(digits, c.columns, c.cell, noise, digit_bank(split), rng)
        question = f"Pick {c.picks} of the digits shown that add up to {target}."
        return self.posed(split, seed, index, question, target, image, digits=digits, noise=noise)

    def _drawn(self, rng: np.random.Generator) -> tuple[list[int], int]:
        """Digits and a target that some of them add up to."""
        c = self.config
        if c.ways is None:
            digits = [int(d) for d in rng.integers(0, 10, c.count)]
            return digits, sum(digits[i] for i in rng.choice(c.count, c.picks, replace=False))
        places = np.array([*combinations(range(c.count), c.picks)])
        fewest, most = c.ways
        for _ in range(_TRIES):
            drawn = rng.integers(0, 10, (_AT_ONCE, c.count))
            sums = drawn[:, places].sum(-1)
            targets = np.take_along_axis(sums, rng.integers(0, len(places), (_AT_ONCE, 1)), axis=1)
            ways = (sums == targets).sum(1)
            found = np.flatnonzero((fewest <= ways) & (ways <= most))
            if len(found):
                return drawn[found[0]].tolist(), int(targets[found[0], 0])
        raise DataError(
            f"digits-pick: {_TRIES * _AT_ONCE} draws gave no {c.count} digits whose target can be had in "
            f"{fewest} to {most} ways; widen task.ways"
        )

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward K digits that are shown and add up to the target by 1, anything else by 0.

        A wrong sum shows in the text alone, a digit that is not shown only where the image is looked at.
        """
        picked = read_integers(tagged.fields.get("answer", ""), self.config.picks, 9)
        if picked is None:
            return UNREADABLE
        shown = not Counter(picked) - Counter(problem.meta["digits"])
        adds_up = sum(picked) == problem.target
        error = {(True, False): WRONG_SUM, (False, True): NOT_SHOWN, (False, False): NEITHER}
        correct = shown and adds_up
        picked.sort()
        key = " ".join(map(str, picked))
        return Verdict(float(correct), correct, picked, key, error=error.get((shown, adds_up)))

    def text_rules(self, problem: Problem, tagged: Tagged) -> dict[str, float]:
        """``text_rule``: the written sum is the target, and there is no `?`.

        ``text_rule_read``, where reasoning begins with the digits that were read: the picks are among these,
        too.
        """
        work, _, total = tagged.fields.get("think", "").rpartition("=")
        passes = total == str(problem.target) and "?" not in work
        found = {"text_rule": float(passes)}
        if self.config.reasoning != "sum":
            read, _, picks = work.partition(":")
            found["text_rule_read"] = float(passes and not Counter(picks.split("+")) - Counter(read))
        return found

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Write the sum of the picks honestly, and mark them honestly.

        A wrong pick is context up to its "=", but for its marks: what wrong picks add up to is taught, and
        which one is not shown, never the picking.
        """
        digits = problem.meta["digits"]
        subsets = list(combinations(digits, self.config.picks))
        right = [s for s in subsets if sum(s) == problem.target]
        picks = list(right[rng.integers(len(right))])
        if wrong:
            picks = self._mistake(picks, digits, rng)
        total = sum(picks)
        quality = float(total == problem.target and not Counter(picks) - Counter(digits))
        rest = f"={total}</think><answer>{' '.join(map(str, picks))}</answer>"
        read = "" if self.config.reasoning == "sum" else "".join(map(str, digits)) + ":"
        if self.config.reasoning != "marked":
            return Demonstration.of(f"<think>{read}{'+'.join(map(str, picks))}", rest, wrong, quality)
        left = Counter(digits)
        pieces = [(ANSWER, f"<think>{read}")]
        for number, pick in enumerate(picks):
            left[pick] -= 1
            behind = ("?" if left[pick] < 0 else "") + (rest if number == len(picks) - 1 else "+")
            pieces += [(CONTEXT if wrong else ANSWER, str(pick)), (ANSWER, behind)]
        return Demonstration(pieces, quality)

    def recheck(self, problem: Problem, tagged: Tagged, rng: np.random.Generator) -> str:
        """Add the answer's digits up again, and pick others behind a semicolon where something is wrong.

        Wrong is a sum that misses the target: of 12 for a target of 14 ``3+7+2=12;5+3+6=14``. Where reasoning
        begins with the digits that were read, wrong is also a pick that is not among them, and marked:
        ``3+7?+4=14;518362:5+3+6=14``. Whether they were read rightly is no matter: words do not tell it.
        """
        picked = read_integers(tagged.fields.get("answer", ""), self.config.picks, 9)
        anew = "".join(text for _, text in self.demonstrate(problem, rng, wrong=False).pieces)
        if picked is None or not tagged.answer_ok:
            return anew
        marked = list(map(str, picked))
        read, colon, _ = tagged.fields.get("think", "").partition(":")
        if colon and self.config.reasoning != "sum":
            left = Counter(read)
            for number, pick in enumerate(marked):
                left[pick] -= 1
                marked[number] += "?" * (left[pick] < 0)
        again = f"{'+'.join(marked)}={sum(picked)}"
        if sum(picked) != problem.target or "?" in again:
            return anew.replace("<think>", f"<think>{again};", 1)
        return f"<think>{again}</think><answer>{' '.join(map(str, picked))}</answer>"

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


Part = DigitsPick | DigitsSum | DigitsLocate | DigitsShown


class DigitsMixConfig(ScoredTaskConfig):
    """How often each task comes, and how hard its problems are."""

    pick: int = Field(4, ge=0)
    """Shares of digits-pick problems."""

    sum: int = Field(2, ge=0)
    """Shares of digits-sum problems."""

    locate: int = Field(2, ge=0)
    """Shares of digits-locate problems."""

    shown: int = Field(0, ge=0)
    """Shares of digits-shown problems."""

    sum_noise: Range = (0.0, 0.35)
    """Noise of the digits-sum problems."""

    locate_digits: int = Field(3, ge=1, le=9)
    """Digits on a digits-locate canvas."""

    pick_reasoning: Reasoning = Field("sum", description=f"For digits-pick problems. {REASONING}")
    locate_noise: Range = (0.0, 0.2)
    """Noise of the digits-locate problems."""

    @model_validator(mode="after")
    def _check(self) -> DigitsMixConfig:
        if not self.pick + self.sum + self.locate + self.shown:
            raise ValueError("pick, sum, locate and shown are all 0; at least one task has to come")
        return self


class DigitsMix(Task):
    """Problems of all digit tasks in a fixed rotation; each is judged by its own task.

    The built-in policy's cold start is trained on it.
    """

    name = "digits-mix"
    summary = "the other digit tasks in turn (for the cold start)"
    config_class = DigitsMixConfig
    config: DigitsMixConfig

    def __init__(self, config: DigitsMixConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        sums = DigitsSumConfig(count=6, fewest=1, noise=c.sum_noise, score=c.score)
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
        return self.rotation[index % len(self.rotation)].problem(split, seed, index)

    def _own(self, problem: Problem) -> Part:
        return self.by_name[problem.id.split("/", 1)[0]]

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return self._own(problem).judge(problem, tagged)

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        return self._own(problem).demonstrate(problem, rng, wrong)
