"""ReasonSeg: an image and, beside it, a JSON file of the same name with texts and polygons (LISA).

A JSON file has ``text`` (one or more ways to ask for the same thing, each a row), ``is_sentence`` and
``shapes`` with ``label`` and ``points``. A label that contains ``ignore`` marks pixels that no metric counts,
``flag`` means nothing; everything else is the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, listed

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")
IGNORED = 255
"""The value of a mask's pixels that no metric counts."""


def is_reasonseg(record: Record) -> bool:
    """Whether a JSON object is one of ReasonSeg's."""
    return {"text", "shapes"} <= record.keys()


def convert_reasonseg(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. ``category`` is ``long`` or ``short``, by which results are reported."""
    path = image_beside(place.file, images.root)
    refs = images.refs(path, place)
    width, height = size = images.size(refs[0])
    shapes = listed(record.get("shapes"), "shapes")
    polygons: list[Any] = []
    ignored: list[Any] = []
    for shape in shapes:
        label = shape.get("label") if isinstance(shape, dict) else None
        if not isinstance(label, str):
            raise DataError("one of its shapes has no label")
        if label.lower() != "flag":
            points = fields.polygon(shape.get("points"), f"shape {label!r}")
            (ignored if "ignore" in label.lower() else polygons).append(points)
    if not polygons:
        raise DataError("none of its shapes is a target")
    xs, ys = ([point[axis] for points in polygons for point in points] for axis in (0, 1))
    # Outlines may run along the edge and a little over it; a target that is elsewhere is caught by `box`.
    around = [max(min(xs), 0), max(min(ys), 0), min(max(xs), width), min(max(ys), height)]
    category = "long" if record.get("is_sentence") else "short"
    found: list[Row | DataError] = []
    questions = record.get("text")
    for index, question in enumerate(
        [questions] if isinstance(questions, str) else listed(questions, "text")
    ):
        try:
            found.append(
                {
                    "id": f"{place.file.stem}/{index}",
                    "images": refs,
                    "source": "ReasonSeg",
                    "category": category,
                    "categories": {"category": [category]},
                    "question": fields.text(question, "text", fields.LONGEST_QUESTION),
                    "box": fields.box(around, size),
                    "polygons": polygons,
                    "ignored": ignored,
                    "size": size,
                }
            )
        except DataError as error:
            found.append(error)
    return found


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
