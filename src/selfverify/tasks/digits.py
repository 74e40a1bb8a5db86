"""Handwritten digits on canvases: what do they add up to, which are not shown, where is one of them?

The digits are the 1,797 UCI scans (8x8, 17 grey levels) that scikit-learn carries. They are split by
source image, so no scan that an evaluation shows was ever trained on.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import ANSWER, CONTEXT
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import (
    UNREADABLE,
    Demonstration,
    Range,
    ScoredTaskConfig,
    Task,
    Verdict,
    judge_integer,
    problem_rng,
    read_integers,
)

# These must never change: published numbers depend on which scans are in which set.
_SPLIT_SEED = 20260101
_VALIDATION, _TEST = 200, 450


Scans = tuple[np.ndarray, ...]
"""The scans of each digit from 0 to 9, ``[N, 8, 8]`` grey levels in [0, 1]."""


@cache
def digit_bank(split: Split) -> Scans:
    """Return the scans of a split. No scan belongs to two splits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(data.target))
    parts = {
        "test": order[:_TEST],
        "validation": order[_TEST : _TEST + _VALIDATION],
        "train": order[_TEST + _VALIDATION :],
    }
    chosen = np.sort(parts[split])
    images, labels = (data.images[chosen] / 16.0).astype(np.float32), data.target[chosen]
    return tuple(images[labels == digit] for digit in range(10))


def paste(canvas: np.ndarray, scan: np.ndarray, left: int, top: int, size: int, ink: float) -> None:
    """Put ``scan`` at (left, top), ``size`` pixels wide, onto ``canvas`` [H, W] in place."""
    pixels = Image.fromarray((scan * 255).astype(np.uint8)).resize((size, size), Image.Resampling.BILINEAR)
    region = canvas[top : top + size, left : left + size]
    np.maximum(region, np.asarray(pixels, dtype=np.float32) / 255 * ink, out=region)


def finish(canvas: np.ndarray, noise: float, rng: np.random.Generator) -> Image.Image:
    """Add Gaussian noise of standard deviation ``noise`` and return an RGB image."""
    noisy = canvas + rng.normal(0.0, noise, canvas.shape).astype(np.float32) if noise else canvas
    grey = (np.clip(noisy, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def draw_grid(
    labels: list[int], columns: int, cell: int, noise: float, bank: Scans, rng: np.random.Generator
) -> Image.Image:
    """Return an image of digits in reading order on a grid; size, place and ink vary inside each cell."""
    rows = -(-len(labels) // columns)
    canvas = np.zeros((rows * cell, columns * cell), dtype=np.float32)
    for index, label in enumerate(labels):
        size = int(rng.integers(int(cell * 0.7), cell + 1))
        left = (index % columns) * cell + int(rng.integers(0, cell - size + 1))
        top = (index // columns) * cell + int(rng.integers(0, cell - size + 1))
        paste(canvas, rng.choice(bank[label]), left, top, size, ink=float(rng.uniform(0.7, 1.0)))
    return finish(canvas, noise, rng)


class DigitsSumConfig(ScoredTaskConfig):
    """Difficulty of `digits-sum`."""

    count: int = Field(4, ge=1, le=12)
    """Digits shown, at most."""

    fewest: int | None = Field(None, ge=1)
    """Digits shown, at least; None means always `count`."""

    columns: int = Field(3, ge=1, le=12)
    """Digits per row."""

    cell: int = Field(16, ge=8, le=64)
    """Side of a digit's cell in pixels."""

    noise: Range = (0.0, 0.35)
    """Range of the noise's standard deviation."""

    @model_validator(mode="after")
    def _check(self) -> DigitsSumConfig:
        if self.fewest is not None and self.fewest > self.count:
            raise ValueError(f"fewest is {self.fewest}, more than count={self.count}")
        return self


class DigitsSum(Task):
    """What do the digits shown add up to? An answer is right when it equals their sum.

    This task shows where verification does not help: a policy errs because noise makes it misread a digit,
    all samples of a problem misread the same one, and no verifier can do much better than a majority vote.
    """

    name = "digits-sum"
    summary = "the sum of the digits shown (discrete)"
    config_class = DigitsSumConfig
    config: DigitsSumConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        c = self.config
        rng = problem_rng(split, seed, index)
        count = c.count if c.fewest is None else int(rng.integers(c.fewest, c.count + 1))
        digits = [int(d) for d in rng.integers(0, 10, count)]
        noise = float(rng.uniform(*c.noise))
        image = draw_grid(digits, c.columns, c.cell, noise, digit_bank(split), rng)
        question = "What do the digits shown add up to?"
        return self.posed(split, seed, index, question, sum(digits), image, digits=digits, noise=noise)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
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


class DigitsShownConfig(ScoredTaskConfig):
    """Difficulty of `digits-shown`."""

    count: int = Field(6, ge=1, le=12)
    """Digits shown."""

    columns: int = Field(3, ge=1, le=12)
    """Digits per row."""

    cell: int = Field(16, ge=8, le=64)
    """Side of each digit's cell in pixels."""

    noise: Range = (0.0, 0.15)
    """Range of the noise's standard deviation."""


class DigitsShown(Task):
    """Which digits from 0 to 9 are not shown?

    An answer is right when it names them, each once, in any order, and no others. It may be empty: twelve
    digits may show all ten.

    The task teaches a cold start to compare a digit that is written with those that were read: reading comes
    first, then all ten digits in any order, with a mark where one was not read, as `digits-pick` marks picks
    (`marked`).
    """

    name = "digits-shown"
    summary = "which digits are not shown (discrete)"
    config_class = DigitsShownConfig
    config: DigitsShownConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
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


class DigitsLocateConfig(ScoredTaskConfig):
    """Difficulty of `digits-locate`."""

    count: int = Field(3, ge=1, le=9)
    """Digits on the canvas, all different."""

    width: int = Field(64, ge=32, le=512, multiple_of=16)
    """Canvas width in pixels."""

    height: int = Field(48, ge=32, le=512, multiple_of=16)
    """Canvas height in pixels."""

    size: tuple[int, int] = (10, 18)
    """Smallest and largest side of a digit in pixels."""

    noise: Range = (0.0, 0.2)
    """Range of the noise's standard deviation."""

    @model_validator(mode="after")
    def _check(self) -> DigitsLocateConfig:
        low, high = self.size
        if not 4 <= low <= high <= min(self.width, self.height):
            raise ValueError(
                f"size {list(self.size)} has to be [low, high] with 4 <= low <= high and to fit into "
                f"{self.width} x {self.height} pixels"
            )
        return self


class DigitsLocate(Task):
    """Find the box of one digit (a continuous task, reward = IoU).

    Boxes are ``x1 y1 x2 y2`` in pixels of the image, as Qwen2.5-VL writes them. An answer is right when its
    IoU exceeds 0.5.
    """

    name = "digits-locate"
    summary = "the box of a digit (continuous, IoU)"
    config_class = DigitsLocateConfig
    config: DigitsLocateConfig
    kind = "continuous"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        c = self.config
        rng = problem_rng(split, seed, index)
        bank = digit_bank(split)
        canvas = np.zeros((c.height, c.width), dtype=np.float32)
        boxes: dict[int, list[int]] = {}
        for digit in rng.permutation(10):
            if len(boxes) == c.count:
                break
            box = self._free_place(list(boxes.values()), rng)
            if box is not None:
                boxes[int(digit)] = box
                paste(canvas, rng.choice(bank[digit]), box[0], box[1], box[2] - box[0], ink=1.0)
        noise = float(rng.uniform(*c.noise))
        asked = int(rng.choice(list(boxes)))
        question = f"Where is the digit {asked}? Give its box as x1 y1 x2 y2."
        image = finish(canvas, noise, rng)
        about = {"boxes": boxes, "asked": asked, "noise": noise}
        return self.posed(split, seed, index, question, boxes[asked], image, **about)

    def _free_place(self, taken: list[list[int]], rng: np.random.Generator) -> list[int] | None:
        for _ in range(50):
            size = int(rng.integers(self.config.size[0], self.config.size[1] + 1))
            left = int(rng.integers(0, self.config.width - size + 1))
            top = int(rng.integers(0, self.config.height - size + 1))
            box = [left, top, left + size, top + size]
            if all(box_iou(box, other) == 0 for other in taken):
                return box
        return None

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward a box by its IoU with the target (ADPO Eq. 3); a box without area is unreadable."""
        box = read_integers(tagged.fields.get("answer", ""), 4, 9999)
        if box is None or box[2] <= box[0] or box[3] <= box[1]:
            return UNREADABLE
        iou = float(box_iou(box, problem.target))
        return Verdict(iou, iou > 0.5, box, " ".join(map(str, box)))

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Name the digit, then its box; a wrong box is another digit's (or anywhere), or is pushed aside."""
        asked, box = problem.meta["asked"], list(problem.target)
        if wrong:
            others = [b for d, b in problem.meta["boxes"].items() if d != asked]
            if rng.random() < 0.5:
                box = others[rng.integers(len(others))] if others else self._free_place([box], rng) or box
            x, y = (int(v) for v in rng.integers(-7, 8, 2))
            box = [max(box[0] + x, 0), max(box[1] + y, 0), max(box[2] + x, 1), max(box[3] + y, 1)]
        head = f"<think>{asked}</think><answer>{' '.join(map(str, box))}"
        return Demonstration.of(head, "</answer>", wrong, float(box_iou(box, problem.target)))
