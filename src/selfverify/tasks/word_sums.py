"""`word-sums`: arithmetic word problems of our own making, without images (discrete).

A problem tells a story of one to three operations. Its sentences and its numbers are its split's own: what an
evaluation asks was trained on neither in these words nor with these numbers. (A single step of a longer
problem may well have been.)
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator
from ruamel.yaml import YAML

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import CONTEXT
from selfverify.tasks.base import Demonstration, ScoredTaskConfig, Task, Verdict, judge_integer, problem_rng

WORDS: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("word_sums.yaml"))
"""Names and things, and the sentences of each split by their place in a story."""

Step = tuple[str, int]
"""An operation (``+``, ``-``, ``*``) and its number."""

_STEP = re.compile(r"(\d+)([-+*])(\d+)=(\d+)")

_PARTS: dict[Split, tuple[int, ...]] = {"test": (0,), "validation": (1,), "train": (2, 3, 4)}
"""Which fifths of all sums, by checksum, belong to a split."""


class WordSumsConfig(ScoredTaskConfig):
    """Difficulty of `word-sums`."""

    largest: int = Field(20, ge=9, le=99)
    """Largest number in a story; results may be larger."""

    operations: tuple[int, int] = (1, 2)
    """Fewest and most operations, within 1 to 3."""

    products: float = Field(0.3, ge=0, le=1)
    """Share of stories that begin with a product (2 to 5 times 2 to 9)."""

    asides: float = Field(0.0, ge=0, le=1)
    """Share of stories with a number that does not matter."""

    @model_validator(mode="after")
    def _check(self) -> WordSumsConfig:
        fewest, most = self.operations
        if not 1 <= fewest <= most <= 3:
            raise ValueError(f"operations is {list(self.operations)}, not [fewest, most] within 1 to 3")
        return self


class WordSums(Task):
    """An answer is right when it is the number that the story ends with."""

    name = "word-sums"
    summary = "arithmetic word problems, text only (discrete)"
    config_class = WordSumsConfig
    config: WordSumsConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        rng = problem_rng(split, seed, index)
        start, steps = self._sum(rng)
        while _part(start, steps) not in _PARTS[split]:
            start, steps = self._sum(rng)
        aside = int(rng.integers(2, self.config.largest + 1)) if rng.random() < self.config.asides else None
        story = _tell(split, start, steps, aside, rng)
        target = _work_out(start, steps)[1]
        return self.posed(split, seed, index, story, target, start=start, steps=steps, aside=aside)

    def _sum(self, rng: np.random.Generator) -> tuple[int, list[Step]]:
        c = self.config
        count = int(rng.integers(c.operations[0], c.operations[1] + 1))
        steps: list[Step] = []
        if rng.random() < c.products:
            start = int(rng.integers(2, 6))
            steps.append(("*", int(rng.integers(2, 10))))
        else:
            start = int(rng.integers(2, c.largest + 1))
        while len(steps) < count:
            total = _work_out(start, steps)[1]
            # Two are taken away at least, and one has to be left.
            if total > 2 and rng.random() < 0.5:
                steps.append(("-", int(rng.integers(2, min(total, c.largest + 1)))))
            else:
                steps.append(("+", int(rng.integers(2, c.largest + 1))))
        return start, steps

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward the number by 1, anything else by 0; an answer with words or a unit is unreadable."""
        return judge_integer(problem.target, tagged, 9999)

    def text_rules(self, problem: Problem, tagged: Tagged) -> dict[str, float]:
        """``text_rule``: steps are worked out well, each from the one before, and the last one is the answer.

        ``text_rule_read``: they use the numbers of the story, too, and all of them where none is an aside.
        """
        written = [_STEP.fullmatch(step) for step in tagged.fields.get("think", "").split("; ")]
        steps = [(int(m[1]), (m[2], int(m[3])), int(m[4])) for m in written if m]
        passes = len(steps) == len(written) and tagged.fields.get("answer") == str(steps[-1][2])
        passes = passes and all(_apply(start, step) == result for start, step, result in steps)
        passes = passes and all(a[2] == b[0] for a, b in pairwise(steps))
        used = Counter([steps[0][0], *(number for _, (_, number), _ in steps)]) if passes else Counter()
        told = Counter(map(int, re.findall(r"\d+", problem.meta["question"])))
        reads = used == told if not self.config.asides else not used - told
        return {"text_rule": float(passes), "text_rule_read": float(passes and reads)}

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Write every step with its result.

        A wrong demonstration slips once. Up to the slip it is context; what follows from the slip is taught.
        """
        start, steps = problem.meta["start"], problem.meta["steps"]
        if not wrong:
            written, total = _work_out(start, steps)
            return Demonstration([("answer", f"<think>{written}</think><answer>{total}</answer>")])
        slip, taught, total = self._mistake(problem, rng)
        while total in (-1, problem.target):  # 2+2 for 2*2 was no mistake
            slip, taught, total = self._mistake(problem, rng)
        return Demonstration([(CONTEXT, slip), ("answer", f"{taught}</answer>")], quality=0.0)

    def _mistake(self, problem: Problem, rng: np.random.Generator) -> tuple[str, str, int]:
        """Return a response that slips once: its text up to the slip, the rest, and its answer.

        The answer is -1 if the total falls below 0.

        The two parts meet where any tokenizer would cut, so that their seam gives nothing away.
        """
        steps = problem.meta["steps"]
        at = int(rng.integers(len(steps)))
        before, total = _work_out(problem.meta["start"], steps[:at])
        if at and rng.random() < 0.25:  # the rest of the story is forgotten
            return f"<think>{before}</think><answer>{total}", "", total
        slip, total, honest = self._slip(total, steps[at], problem.meta["aside"], rng)
        rest, total = _work_out(total, steps[at + 1 :])
        taught = f"{honest}; {rest}</think>" if rest else f"{honest}</think>"
        slip = f"<think>{before}; {slip}" if before else f"<think>{slip}"
        return slip, f"{taught}<answer>{total}", -1 if "=-" in rest else total

    def _slip(
        self, total: int, step: Step, aside: int | None, rng: np.random.Generator
    ) -> tuple[str, int, str]:
        """Return one step gone wrong: what is written, the new total, and what of it is honest."""
        operation, number = step
        other = "+" if operation != "+" else "-"
        kinds = ["result", "number"] if other == "-" and number > total else ["result", "number", "operation"]
        kind = rng.choice(kinds)
        if kind == "result":
            right = _apply(total, step)
            off = int(rng.choice([-10, -2, -1, 1, 2, 10]))
            result = right + off if right + off >= 0 else right - off
            return f"{total}{operation}{number}={result}", result, ""
        if kind == "operation":
            operation = other
        else:
            near = [n for n in (aside, number - 2, number - 1, number + 1, number + 2) if n and n != number]
            # No more is taken away than there is.
            number = int(rng.choice([n for n in near if operation != "-" or n <= total]))
        result = _apply(total, (operation, number))
        return f"{total}{operation}{number}", result, f"={result}"


def _apply(total: int, step: Step) -> int:
    operation, number = step
    return {"+": total + number, "-": total - number, "*": total * number}[operation]


def _work_out(start: int, steps: list[Step]) -> tuple[str, int]:
    """Return the steps as they are written (``7+5=12; 12-4=8``) and the result."""
    written = []
    for step in steps:
        result = _apply(start, step)
        written.append(f"{start}{step[0]}{step[1]}={result}")
        start = result
    return "; ".join(written), start


def _part(start: int, steps: list[Step]) -> int:
    """Return which fifth of all sums (0 to 4) this one is in; 5+7 and 7+5 are in the same."""
    (operation, number), *rest = steps
    if operation != "-":
        start, number = sorted((start, number))
    return zlib.crc32(repr((start, operation, number, rest)).encode()) % 5


def _tell(split: Split, start: int, steps: list[Step], aside: int | None, rng: np.random.Generator) -> str:
    said = WORDS["sentences"][split]
    a, b = rng.choice(WORDS["names"], 2, replace=False)
    things, others = rng.choice(WORDS["things"], 2, replace=False)
    fill = {"A": a, "B": b, "things": things, "others": others, "boxes": rng.choice(WORDS["boxes"])}
    if steps[0][0] == "*":
        story = [str(rng.choice(said["holds"])).format(k=start, n=steps[0][1], **fill)]
        steps = steps[1:]
    else:
        story = [str(rng.choice(said["has"])).format(n=start, **fill)]
    for operation, number in steps:
        sentence = rng.choice(said["plus"] if operation == "+" else said["minus"])
        story.append(str(sentence).format(n=number, **fill))
    if aside is not None:
        place = int(rng.integers(1, len(story) + 1))
        story.insert(place, str(rng.choice(said["aside"])).format(n=aside, **fill))
    return " ".join([*story, str(rng.choice(said["asks"])).format(**fill)])
