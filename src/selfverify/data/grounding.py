"""Boxes and masks for phrases: our own columns, RefCOCO, ReasonSeg; V*'s questions about small things."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, filled, first, listed, number, shown
from selfverify.data.questions import ANSWER_TAG, HUMAN, MODEL, asked, common, convert_vqa, spoken
from selfverify.data.records import PICTURES, read_object

SIDES = ("x1", "y1", "x2", "y2")
ASKS_FOR_A_BOX = re.compile(r"\A.*?region this sentence describes:\s*(.*?)\.?\s*\Z", re.DOTALL)
"""The prompt that VLM-R1's files have around the phrase."""


def is_box(record: Record) -> bool:
    """Whether a record asks for a box, and no question."""
    named = any(filled(record.get(name)) for name in ("box", "bbox", "bbox_2d", "bbox_x1", "bbox_x1_norm"))
    solution = record.get("solution")
    bare = isinstance(solution, list) and len(solution) == 4 and not filled(record.get("answer"))
    return named or bare or ASKS_FOR_A_BOX.search(str(spoken(record, HUMAN))) is not None


def convert_grounding(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert boxes in our own columns, VLM-R1's RefCOCO files, VLMEvalKit's RefCOCO table, and COCO's
    columns.

    A record's box is, in this order, ``bbox_x1`` ... ``bbox_y2`` or those with ``_norm`` (fractions of width
    and height), ``box``, ``bbox``, ``bbox_2d``, ``solution``, ``answer``, or the model's turn of
    ``conversations``; always ``[x1, y1, x2, y2]`` in pixels of the image, whose header is asked where
    ``width`` and ``height`` are missing. Only beside COCO's other columns is ``bbox`` x, y, width and height;
    a list ``answer`` beside it has the phrases for the box (lmms-lab's RefCOCO), each of which makes a row.
    """
    row = _with_box(record, place, images)
    named = record.get("answer") if _is_coco(record) else None
    phrases = named if isinstance(named, list) and named else [named]
    asked_for = asked(record, "normal_caption", "question", "problem")
    return [_asking(row, phrase if filled(phrase) else asked_for, "question") for phrase in phrases]


def _asking(row: Row, phrase: Any, name: str) -> Row | DataError:
    """Return a row that asks for its box by a phrase from the column ``name``."""
    try:
        question = fields.text(phrase, name, fields.LONGEST_QUESTION)
    except DataError as error:
        return error
    return {**row, "question": ASKS_FOR_A_BOX.sub(r"\1", question)}


def _with_box(record: Record, place: Place, images: Images) -> Row:
    """Return the row of a box, to which the caller adds the question."""
    row = common(record, images, place)
    image = fields.one_image(row["images"])
    if filled(record.get("width")) and filled(record.get("height")):
        size = int(number(record["width"], "width")), int(number(record["height"], "height"))
    else:
        size = images.size(image)
    row |= {"box": fields.box(_box(record, size), size), "size": size}
    for name in ("polygons", "ignored"):
        if filled(record.get(name)):
            row[name] = [fields.polygon(points) for points in listed(record[name], name)]
    if filled(split := record.get("split")):
        # VLMEvalKit counts the rows of each split anew; only split and number together are unique.
        row["id"] = f"{split}_{row['id']}" if row["id"] is not None else None
        if row["category"] is None:
            row |= {"category": str(split), "categories": row["categories"] | {"category": [str(split)]}}
    return row


def _is_coco(record: Record) -> bool:
    return "bbox" in record and bool(record.keys() & {"area", "iscrowd", "segmentation"})


def _box(record: Record, size: tuple[int, int]) -> Any:
    for mark, sides in (("", (1, 1)), ("_norm", size)):
        names = [f"bbox_{side}{mark}" for side in SIDES]
        if all(filled(record.get(name)) for name in names):
            values = [number(record[name], name) for name in names]
            return [value * of for value, of in zip(values, (*sides, *sides), strict=True)]
    if _is_coco(record) and filled(record["bbox"]):
        return _corners(record["bbox"])
    found = first(record, "box", "bbox", "bbox_2d", "solution", "answer")
    found = spoken(record, MODEL) if found is None else found
    if isinstance(found, str) and (tagged := ANSWER_TAG.findall(found)):
        found = tagged[-1]
    if not filled(found):
        raise DataError("its box is missing")
    return found


def _corners(box: Any) -> list[float]:
    """Return the corners of a box of x, y, width and height, as COCO and V* write it."""
    x, y, width, height = fields.sides(box, "bbox")
    return [x, y, x + width, y + height]


SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")
IGNORED = 255
"""The value of a mask's pixels that no metric counts."""


def convert_reasonseg(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert a JSON file of ReasonSeg. ``category`` is ``long`` or ``short``, by which results are reported.

    ReasonSeg (LISA) is images and, beside each, a JSON file of the same name with texts and polygons. The
    file has ``text`` (one or more ways to ask for the same thing, each a row), ``is_sentence`` and ``shapes``
    with ``label`` and ``points``. A label that contains ``ignore`` marks pixels that no metric counts,
    ``flag`` means nothing; everything else is the target.
    """
    path = image_beside(place.file, images.root)
    width, height = images.size(images.refs(path, place)[0])
    shapes: dict[str, list[Any]] = {"polygons": [], "ignored": []}
    for shape in listed(record.get("shapes"), "shapes"):
        label = shape.get("label") if isinstance(shape, dict) else None
        if not isinstance(label, str):
            raise DataError("one of its shapes has no label")
        if label.lower() != "flag":
            points = fields.polygon(shape.get("points"), f"shape {label!r}")
            shapes["ignored" if "ignore" in label.lower() else "polygons"].append(points)
    if not shapes["polygons"]:
        raise DataError("none of its shapes is a target")
    xs, ys = zip(*(point for points in shapes["polygons"] for point in points), strict=True)
    # Outlines may run along the edge and a little over it; a target that is elsewhere is caught by `box`.
    box = [max(min(xs), 0), max(min(ys), 0), min(max(xs), width), min(max(ys), height)]
    category = "long" if record.get("is_sentence") else "short"
    about = {"image": path, "source": "ReasonSeg", "category": category, "box": box, **shapes}
    row = _with_box(about, place, images)
    given = record.get("text")
    texts = [given] if isinstance(given, str) else listed(given, "text")
    return [_asking({**row, "id": f"{place.file.stem}/{n}"}, text, "text") for n, text in enumerate(texts)]


def draw_mask(
    polygons: Sequence[Any], ignored: Sequence[Any], size: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the mask ``[height, width]``: 1 in the target, `IGNORED` where no metric counts, else 0.

    Larger shapes are drawn first, so that smaller ones lie upon them, as in LISA.
    """
    shapes = [(points, 1) for points in polygons] + [(points, IGNORED) for points in ignored]
    canvas = Image.new("L", size)
    draw = ImageDraw.Draw(canvas)
    for points, value in sorted(shapes, key=lambda shape: -_area(shape[0])):
        draw.polygon([(int(x), int(y)) for x, y in points], fill=value, outline=value)
    return np.asarray(canvas)


def _area(points: Sequence[Sequence[float]]) -> float:
    following = [*points[1:], points[0]]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(points, following, strict=True))) / 2


def image_beside(file: Path, root: Path) -> Path:
    """The image with the name of a JSON file.

    Raises:
        DataError: There is none.
    """
    for folder in (file.parent, root):
        for suffix in SUFFIXES:
            if (folder / (file.stem + suffix)).is_file():
                return folder / (file.stem + suffix)
    raise DataError(f"there is no image {file.stem} beside it ({', '.join(SUFFIXES[:3])})")


_OPTION = re.compile(r"^\(([A-Z])\)\s*(.+?)\s*$", re.MULTILINE)


def is_vstar_line(record: Record) -> bool:
    """Whether a record is a line of V*'s list."""
    return {"image", "text", "label"} <= record.keys()


def convert_vstar(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert to a row of a question with ``target_boxes``, (x1, y1, x2, y2) in pixels of its image.

    V* (Wu and Xie 2023) has questions about small things in large images, with the boxes of what is asked
    about: either a folder with an image and, beside it, a JSON file of the same name (``question``,
    ``options``, ``target_object``, ``bbox``), or the list ``test_questions.jsonl`` (``image``, ``text`` with
    the options in it, ``label``, ``category``), beside whose images these files stand, too. In the JSON files
    the first option is always the right one; they are shuffled here, by the image's name. Their boxes are x,
    y, width, height.
    """
    if is_vstar_line(record):
        return _of_list(record, place, images)
    path = image_beside(place.file, images.root)
    options = listed(record["options"], "options")
    texts = [fields.written(option, "option") for option in options]
    if not 2 <= len(texts) <= len(string.ascii_uppercase) or len(set(texts)) < len(texts):
        raise DataError(f"its options are {shown(texts)}: two or more different ones are needed")
    seed = int.from_bytes(hashlib.blake2b(place.file.stem.encode(), digest_size=8).digest())
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    about = {
        "id": place.file.stem,
        "image": path,
        "category": place.file.parent.name,
        "question": fields.text(record["question"], "question"),
        "options": {string.ascii_uppercase[n]: texts[old] for n, old in enumerate(order)},
        "answer": string.ascii_uppercase[order.index(0)],
    }
    return _with_boxes(about, record["bbox"], place, images)


def _of_list(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """The row of a line of the list; its boxes stand in the file beside its image, where that is there."""
    text = fields.text(record["text"], "text", fields.LONGEST_QUESTION)
    options = dict(_OPTION.findall(text))
    if not options:
        raise DataError(f"its text has no options: lines such as (A) red are needed behind {shown(text)}")
    # Its image is no path in lmms-lab's Parquet.
    name = record["image"] if str(record["image"]).lower().endswith(PICTURES) else ""
    beside = (images.root / name).with_suffix(".json") if name else None
    about = {
        "id": Path(name).stem if name else record.get("question_id"),
        "image": record["image"],
        "category": fields.optional(record, "category") or Path(name).parent.name,
        "question": _OPTION.split(text)[0],
        "options": options,
        "answer": fields.text(record["label"], "label").strip("()"),
    }
    boxes = read_object(beside).get("bbox") if beside is not None and beside.is_file() else []
    return _with_boxes(about, boxes, place, images)


def _with_boxes(about: Record, boxes: Any, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return the row of a question in our own columns, with the boxes of what is asked about."""
    [row] = convert_vqa({**about, "source": "V*"}, place, images)
    row["target_boxes"] = [
        fields.box(_corners(box), images.size(row["images"][0])) for box in listed(boxes, "bbox")
    ]
    return [row]
