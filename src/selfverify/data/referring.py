"""Boxes for phrases: our own columns, VLM-R1's RefCOCO files, VLMEvalKit's RefCOCO table.

A record's box is, in this order, ``bbox_x1`` ... ``bbox_y2`` or those with ``_norm`` (fractions of width and
height), ``box``, ``bbox``, ``bbox_2d``, ``solution``, ``answer``, or the model's turn of ``conversations``;
always ``[x1, y1, x2, y2]`` in pixels of the image, whose header is asked where ``width`` and ``height`` are
missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, filled, first, listed, number
from selfverify.data.vqa import ANSWER_TAG, MODEL, asked, common, spoken

SIDES = ("x1", "y1", "x2", "y2")
ASKS_FOR_A_BOX = re.compile(r"\A.*?region this sentence describes:\s*(.*?)\.?\s*\Z", re.DOTALL)
"""The prompt that VLM-R1's files have around the phrase."""


def convert_grounding(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`."""
    row = common(record, images, place)
    image = fields.one_image(row["images"])
    if filled(record.get("width")) and filled(record.get("height")):
        size = int(number(record["width"], "width")), int(number(record["height"], "height"))
    else:
        size = images.size(image)
    found = asked(record, "normal_caption", "question", "problem")
    question = fields.text(found, "question", fields.LONGEST_QUESTION)
    row |= {
        "question": ASKS_FOR_A_BOX.sub(r"\1", question),
        "box": fields.box(_box(record, size), size),
        "size": size,
    }
    for name in ("polygons", "ignored"):
        if filled(record.get(name)):
            row[name] = [fields.polygon(points) for points in listed(record[name], name)]
    if filled(split := record.get("split")):
        # VLMEvalKit counts the rows of each split anew; only split and number together are unique.
        row["id"] = f"{split}_{row['id']}" if row["id"] is not None else None
        if row["category"] is None:
            row |= {"category": str(split), "categories": row["categories"] | {"category": [str(split)]}}
    return [row]


def _box(record: Record, size: tuple[int, int]) -> Any:
    if all(filled(record.get(f"bbox_{side}")) for side in SIDES):
        return [record[f"bbox_{side}"] for side in SIDES]
    if all(filled(record.get(f"bbox_{side}_norm")) for side in SIDES):
        values = [number(record[f"bbox_{side}_norm"], f"bbox_{side}_norm") for side in SIDES]
        return [value * of for value, of in zip(values, (*size, *size), strict=True)]
    found = first(record, "box", "bbox", "bbox_2d", "solution", "answer")
    found = spoken(record, MODEL) if found is None else found
    if isinstance(found, str) and (tagged := ANSWER_TAG.findall(found)):
        found = tagged[-1]
    if not filled(found):
        raise DataError("its box is missing")
    return found
