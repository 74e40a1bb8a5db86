"""`digits-locate`: give the bounding box of one digit on a canvas (a continuous task, reward = IoU)."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.selection.rules import box_iou
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
from selfverify.tasks.digits.canvas import digit_bank, finish, paste


class DigitsLocateConfig(ScoredTaskConfig):
    """Difficulty of `digits-locate`."""

    count: int = Field(3, ge=1, le=9, description="Digits on the canvas, all different.")
    width: int = Field(64, ge=32, le=512, multiple_of=16, description="Canvas width in pixels.")
    height: int = Field(48, ge=32, le=512, multiple_of=16, description="Canvas height in pixels.")
    size: tuple[int, int] = Field((10, 18), description="Smallest and largest side of a digit in pixels.")
    noise: Range = Field((0.0, 0.2), description="Range of the noise's standard deviation.")

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
    """Find the box of a digit.

    Boxes are ``x1 y1 x2 y2`` in pixels of the image, as Qwen2.5-VL writes them. An answer is right when its
    IoU exceeds 0.5.
    """

    name = "digits-locate"
    summary = "the box of a digit (continuous, IoU)"
    config_class = DigitsLocateConfig
    config: DigitsLocateConfig
    kind = "continuous"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
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
