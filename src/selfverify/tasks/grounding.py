"""`grounding`: the box of what an expression refers to, how answers write it, and its overlap.

The reward is the box's IoU with the target (ADPO Eq. 3; as VLM-R1, boxes only). Referring segmentation
reports gIoU, the mean of the problems' IoU (not the "generalized IoU"), and cIoU, the sum of all
intersections over that of all unions. Both are LISA's, without the 1e-5 that LISA adds to a union.
`box_overlap` compares boxes with boxes, `mask_overlap` the pixels that boxes cover with the pixels of a mask.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.data.fields import Row
from selfverify.data.grounding import IGNORED, convert_grounding, draw_mask
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
from selfverify.tasks.math_text import boxes
from selfverify.tasks.row_task import RowTask, RowTaskConfig, clip_box, convert
from selfverify.tasks.tool_calls import is_number, json_at

MAX_CHARS = 4096
"""Longer answers are no box."""
MAX_DEPTH = 5
"""The deepest nesting of lists, objects, quotes and tags around a box."""
MAX_COORDINATE = 100_000.0
"""Larger coordinates, which no image has, are no coordinates."""

_KEYS = ("bbox_2d", "bbox", "box")
_TAGS = {"<box>": "</box>", "<|box_start|>": "<|box_end|>"}
# Every repetition is bounded, so that matching at one place takes a bounded time.
_N = r"([-+]?[0-9]{1,9}(?:\.[0-9]{1,15})?)"
_COMMA = r"\s{0,8},\s{0,8}"
_BEGIN = re.compile(rf"\{{|\[(?!\s{{0,8}}\()|<box>|<\|box_start\|>|\(\s{{0,8}}(?={_N}{_COMMA})", re.ASCII)
_CORNERS = re.compile(
    rf"\(\s{{0,8}}{_N}{_COMMA}{_N}(?:\s{{0,8}}\)\s{{0,8}},?\s{{0,8}}\(\s{{0,8}}|{_COMMA}){_N}{_COMMA}{_N}"
    r"\s{0,8}\)",
    re.ASCII,
)
_GAP = rf"(?:{_COMMA}|\s{{1,8}})"
_BARE = re.compile(rf"{_N}{_GAP}{_N}{_GAP}{_N}{_GAP}{_N}", re.ASCII)


def parse_box(text: str) -> list[float] | None:
    """Return the box in an answer in the model's space; None if there is none. Never raises.

    It may have any of the usual forms. Accepted is one box, (x1, y1, x2, y2), as

    - JSON: a list of four numbers or of two corners; an object with it under ``bbox_2d``, ``bbox`` or
      ``box``; a list of such objects or lists, of which the first counts (as in VLM-R1's scorer); the same in
      quotes;
    - corners in brackets: ``(x1, y1), (x2, y2)``, or all four in one: ``(x1, y1, x2, y2)``;
    - any of these or four bare numbers in ``\\boxed{..}``, ``<box>..</box>`` or
      ``<|box_start|>..<|box_end|>``;
    - four bare numbers and nothing else.

    Fences and prose may stand before and behind. The first place that looks like the beginning of a box
    decides: what begins there has to be whole. Malformed JSON, three or five numbers, a key twice, NaN or a
    tag that is not closed are no box, and nothing further on is looked for.
    """
    return _parse(text, depth=0)


def _parse(text: str, depth: int) -> list[float] | None:
    text = text.strip(" \t\n\r\f\v")
    if depth > MAX_DEPTH or len(text) > MAX_CHARS:
        return None
    if boxed := boxes(text):
        return _parse(boxed[0][2], depth + 1) if len(boxed) == 1 else None
    bare = _BARE.fullmatch(text)
    if bare:
        return _box(list(map(float, bare.groups())))
    begin = _BEGIN.search(text)
    if begin is None:
        # A string in quotes: "[1, 2, 3, 4]" has a bracket, "1, 2, 3, 4" has none.
        return _parse(text[1:-1], depth + 1) if len(text) > 1 and text[0] == text[-1] == '"' else None
    start, opening = begin.start(), begin.group()
    if opening in _TAGS:
        end = text.find(_TAGS[opening], begin.end())
        return None if end < 0 else _parse(text[begin.end() : end], depth + 1)
    if opening.startswith("("):
        corners = _CORNERS.match(text, start)
        return _box(list(map(float, corners.groups()))) if corners else None
    if '"' not in text:
        text = text.replace("'", '"')  # as Python prints it
    try:
        return _search(json_at(text, start)[0], depth)
    except ValueError:
        # Python prints "the man's dog" in other quotes than the rest.
        return _search(_python_literal(text[start:]), depth) if "'" in text else None


def _python_literal(text: str) -> Any:
    """Return the list or object that a text begins with as Python prints it; None for anything else."""
    try:
        return ast.literal_eval(text[: max(text.rfind("}"), text.rfind("]")) + 1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _search(value: Any, depth: int) -> list[float] | None:
    """Return the box that a JSON value is or begins with."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return _parse(value, depth + 1)
    if isinstance(value, dict):
        named = [key for key in _KEYS if key in value]
        return _search(value[named[0]], depth + 1) if len(named) == 1 else None
    if not isinstance(value, list) or not value:
        return None
    if any(is_number(item) for item in value):
        return _box(value)
    if len(value) == 2 and all(isinstance(corner, list) and len(corner) == 2 for corner in value):
        return _box([*value[0], *value[1]])
    return _search(value[0], depth + 1)


def _box(values: list[Any]) -> list[float] | None:
    if len(values) != 4 or not all(is_number(v) and abs(v) <= MAX_COORDINATE for v in values):
        return None
    return [float(v) for v in values]


def box_overlap(boxes: ArrayLike, targets: ArrayLike) -> Floats:
    """Return the areas of intersection and union ``[P, 2]`` of P boxes (x1, y1, x2, y2) with their targets.

    A box that is NaN (unreadable) or has no area intersects nothing; the union is the target's area then.
    """
    boxes, targets = np.asarray(boxes, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    boxes = np.where(np.isnan(boxes).any(-1, keepdims=True), 0.0, boxes)
    sides = np.minimum(boxes[..., 2:], targets[..., 2:]) - np.maximum(boxes[..., :2], targets[..., :2])
    area, wanted = (np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (boxes, targets))
    shared = np.where(area > 0, np.clip(sides, 0, None).prod(-1), 0.0)
    return np.stack([shared, area + wanted - shared], axis=-1)


def mask_overlap(boxes: ArrayLike, target: ArrayLike) -> Floats:
    """Return intersections and unions ``[M, 2]`` of what boxes ``[M, 4]`` cover with one target ``[H, W]``.

    A box covers the pixels whose middle lies in it; pixels where the target is 255 are left out. Each box
    costs eight look-ups in running sums of the target.
    """
    boxes, target = np.asarray(boxes, dtype=np.float64), np.asarray(target)
    boxes = np.where(np.isnan(boxes).any(-1, keepdims=True), 0.0, boxes)
    height, width = target.shape
    sides = np.clip(np.ceil(boxes - 0.5), 0, [width, height, width, height]).astype(np.int64)
    wanted = _running((target != 0) & (target != IGNORED))
    shared, covered = _inside(wanted, sides), _inside(_running(target != IGNORED), sides)
    return np.stack([shared, covered + float(wanted[-1, -1]) - shared], axis=-1)


def _running(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return ``[H + 1, W + 1]``: the number of flags above and to the left of each corner of a pixel."""
    sums = np.zeros((flags.shape[0] + 1, flags.shape[1] + 1), dtype=np.int32)
    flags.cumsum(1, dtype=np.int32).cumsum(0, out=sums[1:, 1:])
    return sums


def _inside(sums: NDArray[np.int32], sides: NDArray[np.int64]) -> Floats:
    x1, y1, x2, y2 = sides.T
    x2, y2 = np.maximum(x1, x2), np.maximum(y1, y2)
    found = sums[y2, x2] - sums[y1, x2] - sums[y2, x1] + sums[y1, x1]
    return found.astype(np.float64)


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
            found |= _parts("mask", mask_overlap(answers, mask))
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
