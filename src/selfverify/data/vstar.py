"""V* (Wu and Xie 2023): questions about small things in large images, with the boxes of what is asked about.

Either a folder with an image and, beside it, a JSON file of the same name (``question``, ``options``,
``target_object``, ``bbox``), or the list ``test_questions.jsonl`` (``image``, ``text`` with the options in
it, ``label``, ``category``), beside whose images these files stand, too. In the JSON files the first option
is always the right one; they are shuffled here, by the image's name. Boxes are x, y, width, height.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfverify.core.errors import DataError
from selfverify.core.files import read_regular
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, listed, shown
from selfverify.data.reasonseg import image_beside

_OPTION = re.compile(r"^\(([A-Z])\)\s*(.+?)\s*$", re.MULTILINE)


def is_vstar(record: Record) -> bool:
    """Whether a JSON object is one of the files beside V*'s images."""
    return {"question", "options", "bbox", "target_object"} <= record.keys()


def is_vstar_line(record: Record) -> bool:
    """Whether a record is a line of V*'s list."""
    return {"image", "text", "label"} <= record.keys()


def convert_vstar(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`: a row of a question with ``target_boxes``, (x1, y1, x2, y2) in pixels of its image."""
    if is_vstar_line(record):
        return [_of_list(record, place, images)]
    path = image_beside(place.file, images.root)
    refs = images.refs(path, place)
    texts = [
        fields.written(text, "option", fields.LONGEST_ANSWER) for text in listed(record["options"], "options")
    ]
    if not 2 <= len(texts) <= len(string.ascii_uppercase) or len(set(texts)) < len(texts):
        raise DataError(f"its options are {shown(texts)}: two or more different ones are needed")
    seed = int.from_bytes(hashlib.blake2b(place.file.stem.encode(), digest_size=8).digest())
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    options = {string.ascii_uppercase[n]: texts[old] for n, old in enumerate(order)}
    question = fields.text(record["question"], "question", fields.LONGEST_QUESTION)
    answer = string.ascii_uppercase[order.index(0)]
    boxes = _boxes(record["bbox"], images.size(refs[0]))
    return [_row(place.file.stem, refs, place.file.parent.name, question, options, answer, boxes)]


def _of_list(record: Record, place: Place, images: Images) -> Row:
    """The row of a line of the list; its boxes stand in the file beside its image, where that is there."""
    refs = images.refs(record["image"], place)
    text = fields.text(record["text"], "text", fields.LONGEST_QUESTION)
    options = dict(_OPTION.findall(text))
    if not options:
        raise DataError(f"its text has no options: lines such as (A) red are needed behind {shown(text)}")
    label = fields.text(record["label"], "label", 10).strip("()")
    if len(options) < 2 or label not in options:
        raise DataError(f"its label {shown(record['label'])} is none of the options in its text")
    name = str(record["image"])
    beside = (images.root / name).with_suffix(".json") if refs and refs[0].path is not None else None
    boxes: list[list[float]] = []
    if beside is not None and beside.is_file():
        try:
            about = json.loads(read_regular(beside))
            boxes = _boxes(about["bbox"], images.size(refs[0]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{beside}: its boxes cannot be read ({type(error).__name__}: {error})") from None
    question = text[: _OPTION.search(text).start()].strip()  # type: ignore[union-attr]  # it was found above
    category = fields.optional(record, ("category",), 100) or Path(name).parent.name
    return _row(Path(name).stem, refs, category, question, options, label, boxes)


def _row(
    id: str,
    refs: Sequence[Any],
    category: str,
    question: str,
    options: dict[str, str],
    answer: str,
    boxes: Sequence[Sequence[float]],
) -> Row:
    return {
        "id": id,
        "images": list(refs),
        "source": "V*",
        "category": category,
        "categories": {"category": [category]},
        "question": question,
        "answer": answer,
        "options": options,
        "answer_type": None,
        "precision": None,
        "target_boxes": [list(box) for box in boxes],
    }


def _boxes(value: Any, size: tuple[int, int]) -> list[list[float]]:
    """Boxes ``[x, y, width, height]`` as corners."""
    found = []
    for box in listed(value, "bbox"):
        x, y, wide, high = fields.sides(box, "bbox")
        found.append(fields.box([x, y, x + wide, y + high], size))
    return found
