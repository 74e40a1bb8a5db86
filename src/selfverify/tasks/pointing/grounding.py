"""`grounding`: the box of what an expression refers to; reward = IoU (ADPO Eq. 3; as VLM-R1, boxes only)."""

from __future__ import annotations

import json

import numpy as np

from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.data.fields import Row
from selfverify.data.grounding import convert_grounding, draw_mask
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import (
    UNREADABLE,
    Demonstration,
    Floats,
    Metric,
    ScoredTaskConfig,
    Verdict,
    user_turn,
)
from selfverify.tasks.coordinates import clip_box, convert
from selfverify.tasks.pointing.boxes import parse_box
from selfverify.tasks.pointing.regions import MaskOverlap, box_overlap
from selfverify.tasks.row_task import RowTask, RowTaskConfig

HIT = 0.5
"""An answer is right when its IoU exceeds this: ADPO's Acc, VLM-R1's evaluation, Acc@0.5."""

KEPT = ("category", "categories", "source", "polygons", "ignored")
"""Fields of rows that evaluations look at."""


class GroundingConfig(ScoredTaskConfig, RowTaskConfig):
    """Where the rows are, and whether a score is asked for."""


class Grounding(RowTask):
    """Find the box of what an expression refers to.

    Rows have ``question`` (the expression), ``images`` (one) and ``box`` in pixels of that image. Problems
    keep the fields `KEPT` of their row in ``meta``.

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    convert = staticmethod(convert_grounding)
    needs = ("question", "box")
    name = "grounding"
    summary = "the box an expression refers to, from data files (IoU)"
    config_class = GroundingConfig
    config: GroundingConfig
    kind = "continuous"
    writes_places = True
    metrics = (
        Metric("box_giou", "box_iou"),
        Metric("box_ciou", "box_intersection", "box_union"),
        Metric("box_acc@0.5", "box_hit"),
        Metric("mask_giou", "mask_iou"),
        Metric("mask_ciou", "mask_intersection", "mask_union"),
    )

    def ask(self, row: Row, id: str) -> Problem:
        """See `RowTask.ask`."""
        question, image = row["question"], row["images"][0].open()
        if image.size != row["size"]:
            raise DataError(
                f"{id}: its image is {image.size[0]} x {image.size[1]}, the file says "
                f"{row['size'][0]} x {row['size'][1]}: its box is not where it says"
            )
        text = (
            f"Find what this refers to in the image: {question}\n"
            'The answer is its bounding box as JSON: {"bbox_2d": [x1, y1, x2, y2]}. '
        )
        space = self.space_of(image.size, id)
        kept = {key: row[key] for key in KEPT if row.get(key) is not None}
        return Problem(
            id,
            user_turn(text + self.request),
            [image],
            row["box"],
            {"question": question, "size": image.size, "space": space, **kept},
        )

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Return the IoU, in pixels of the image, of the target with the part of the box within the image.

        A box that has no area there is unreadable.

        Right is what exceeds `HIT`, as for the boxes that votes make (`selfverify.selection.rules`).
        """
        written = parse_box(tagged.fields.get("answer", ""))
        if written is None:
            return UNREADABLE
        size = problem.meta["size"]
        box = clip_box(convert(written, problem.meta["space"], size), size)
        if box is None:
            return UNREADABLE
        iou = float(box_iou(box, problem.target))
        shown = [round(value, 2) for value in box]
        return Verdict(iou, iou > HIT, shown, " ".join(f"{value:g}" for value in shown))

    def answer_parts(self, problem: Problem, answers: Floats) -> dict[str, Floats]:
        """Return overlaps ``[M]`` of boxes ``[M, 4]`` with the target's box.

        Where the target has polygons, the pixels that a box covers are compared with its mask, too. A NaN box
        covers nothing.
        """
        found = _parts("box", box_overlap(answers, np.broadcast_to(problem.target, answers.shape)))
        found["box_hit"] = (found["box_iou"] > HIT).astype(np.float64)
        if problem.meta.get("polygons"):
            mask = draw_mask(
                problem.meta["polygons"], problem.meta.get("ignored") or (), problem.meta["size"]
            )
            found |= _parts("mask", MaskOverlap(mask)(answers))
        return found

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Show the target in the policy's space; a wrong box is pushed aside by more than half its size."""
        size, space = problem.meta["size"], problem.meta["space"]
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
        head = f"<think>{thought}</think><answer>{answer}"
        return Demonstration.of(head, "</answer>", wrong, quality)


def _parts(kind: str, overlaps: Floats) -> dict[str, Floats]:
    """Name intersections and unions ``[M, 2]``, and add their quotient, 1 where the union is empty."""
    shared, union = overlaps.T
    iou = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
    return {f"{kind}_intersection": shared, f"{kind}_union": union, f"{kind}_iou": iou}
