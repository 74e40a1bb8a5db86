"""`grounding`: the box of what an expression refers to; reward = IoU (ADPO Eq. 3; as VLM-R1, boxes only)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from selfverify.data.reasonseg import draw_mask
from selfverify.errors import ConfigError, DataError
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.types import Problem
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import (
    SCORE_INSTRUCTION,
    UNREADABLE,
    Demonstration,
    Judged,
    Metric,
    Space,
    user_turn,
)
from selfverify.tasks.boxes import parse_box
from selfverify.tasks.canvas import Split
from selfverify.tasks.coordinates import Size, clip_box, convert
from selfverify.tasks.regions import Floats, MaskOverlap, box_overlap
from selfverify.tasks.row_fields import RowTaskConfig, categories_of, one_image, space_of, text_field
from selfverify.tasks.rows import Row, Rows, Splits
from selfverify.tasks.strict_json import is_number

_SLACK = 1.0
"""Pixels by which a target may stand out of its image: what rounding a width to whole pixels adds."""

HIT = 0.5
"""An answer is right when its IoU exceeds this: ADPO's Acc, VLM-R1's evaluation, Acc@0.5."""

KEPT = ("category", "source", "polygons", "ignored")
"""Fields of rows that an evaluation looks at."""


class GroundingConfig(RowTaskConfig):
    """Options of `grounding`."""


class Grounding:
    """Rows have ``question`` (the expression), ``images`` (one) and ``box`` in pixels of that image.

    What else of `KEPT` a row has stands in the problems' ``meta``.

    Args:
        config: Options, the data files among them.
        rows: Rows that are in memory, by split, instead of files.
    """

    name = "grounding"
    kind: Literal["continuous"] = "continuous"
    tags = ("think", "answer", "score")
    metrics = (
        Metric("box_giou", "box_iou"),
        Metric("box_ciou", "box_intersection", "box_union"),
        Metric("box_acc@0.5", "box_hit"),
        Metric("mask_giou", "mask_iou"),
        Metric("mask_ciou", "mask_intersection", "mask_union"),
    )

    def __init__(
        self, config: GroundingConfig | None = None, rows: Mapping[Split, Rows] | None = None
    ) -> None:
        self.config = config or GroundingConfig()
        self.splits = Splits(self.config.files, rows)
        self._space: Space | None = None

    def use_space(self, space: Space) -> None:
        """See `selfverify.tasks.base.tell_space`."""
        self._space = space

    def count(self, split: Split) -> int:
        """See `Task.judge`."""
        return self.splits.count(split)

    def broken(self, split: Split) -> list[str]:
        """See `Splits.broken`."""
        return self.splits.broken(split)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`.

        Raises:
            DataError: The row is no grounding problem; the message says which row and why.
        """
        row, id = self.splits.row(split, seed, index)
        name = f"{self.name}/{id}"
        image, question = one_image(row, name), text_field(row, "question", name)
        text = (
            f"Find what this refers to in the image: {question}\n"
            'The answer is its bounding box as JSON: {"bbox_2d": [x1, y1, x2, y2]}. '
        )
        space = None if self._space is None else space_of(self._space, image.size, name)
        kept = {key: row[key] for key in KEPT if row.get(key) is not None}
        kept["categories"] = categories_of(row)
        return Problem(
            name,
            user_turn(text + SCORE_INSTRUCTION),
            [image],
            target_box(row, image.size, name),
            {"question": question, "size": image.size, "space": space, **kept},
        )

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """IoU in pixels of the image with the box as far as it lies within; one without area is unreadable.

        Right is what exceeds `HIT`, as for the boxes that votes make (`selfverify.selection.rules`).

        Raises:
            ConfigError: The problem was made before the task knew how its policy writes places.
        """
        written = parse_box(tagged.fields.get("answer", ""))
        if written is None:
            return UNREADABLE
        size = problem.meta["size"]
        box = clip_box(convert(written, known_space(problem), size), size)
        if box is None:
            return UNREADABLE
        iou = float(box_iou(box, problem.target))
        shown = [round(value, 2) for value in box]
        return Judged(iou, iou > HIT, shown, " ".join(f"{value:g}" for value in shown))

    def answer_parts(self, problem: Problem, answers: Floats) -> dict[str, Floats]:
        """Overlaps ``[M]`` of boxes ``[M, 4]`` with the target, box with box and, where there are polygons,
        the pixels that a box covers with the target's mask. NaN covers nothing.
        """
        shared, union = box_overlap(answers, np.broadcast_to(problem.target, answers.shape)).T
        iou = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
        found = {"box_intersection": shared, "box_union": union, "box_iou": iou}
        found["box_hit"] = (iou > HIT).astype(np.float64)
        if problem.meta.get("polygons"):
            mask = draw_mask(
                problem.meta["polygons"], problem.meta.get("ignored") or (), problem.meta["size"]
            )
            shared, union = MaskOverlap(mask)(answers).T
            iou = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
            found |= {"mask_intersection": shared, "mask_union": union, "mask_iou": iou}
        return found

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """The target in the policy's space; a wrong one is pushed aside by more than half of its size."""
        size, space = problem.meta["size"], known_space(problem)
        box = list(problem.target)
        if wrong:
            axis, sign = int(rng.integers(2)), 1 if rng.random() < 0.5 else -1
            side = box[axis + 2] - box[axis]
            room = size[axis] - box[axis + 2] if sign > 0 else box[axis]
            if room < 0.6 * side:  # to where there is more
                sign = 1 if size[axis] - box[axis + 2] > box[axis] else -1
            shift = sign * float(rng.uniform(0.6, 0.9)) * side
            box[axis], box[axis + 2] = box[axis] + shift, box[axis + 2] + shift
            box = clip_box(box, size) or box
        written = [round(value) for value in convert(box, size, space)]
        back = clip_box(convert(written, space, size), size)
        quality = 0.0 if back is None else float(box_iou(back, problem.target))
        thought = problem.meta["question"].replace("<", "").replace(">", "")
        answer = json.dumps({"bbox_2d": written})
        pieces = [
            ("context" if wrong else "answer", f"<think>{thought}</think><answer>{answer}"),
            ("answer", "</answer>"),
        ]
        return Demonstration(pieces, quality)


def known_space(problem: Problem) -> Size:
    """The space in which the policy writes places in the problem's image.

    Raises:
        ConfigError: The task was not told when it made the problem.
    """
    space: Size | None = problem.meta["space"]
    if space is None:
        raise ConfigError(
            f"problem {problem.id}: how the policy writes places is not known; call "
            "task.use_space(policy.coordinate_space) before making problems (learn and evaluate do)"
        )
    return space


def target_box(row: Row, size: Size, name: str) -> list[float]:
    """A row's ``box`` within its image.

    Raises:
        DataError: It is not four numbers, has its corners swapped or no area, or stands out of the image by
            more than a pixel.
    """
    box: Any = row.get("box")
    if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(is_number(v) for v in box):
        raise DataError(f"{name}: box has to be [x1, y1, x2, y2], not {box!r:.80}")
    if box[0] >= box[2] or box[1] >= box[3]:
        raise DataError(f"{name}: box {list(box)} has no area: x1 < x2 and y1 < y2 are needed")
    inside = clip_box(box, size)
    if inside is None or max(abs(a - b) for a, b in zip(inside, box, strict=True)) > _SLACK:
        raise DataError(f"{name}: box {list(box)} is not within its image of {size[0]} x {size[1]} pixels")
    return inside
