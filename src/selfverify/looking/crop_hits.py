"""Whether a model has looked at what the question is about: the crop-hit rate.

A right answer may come from a wrong crop. Where a file says where the things are that a question is about
(V*), this can be measured without a judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.looking.image_parts import Box, ImagePart
from selfverify.looking.tools.pictures import SeenImage

CROP_HIT = "crop_hit"
"""The reward with the share of a question's boxes that were hit."""


def crop_hit(pictures: Sequence[SeenImage], boxes: Sequence[Box]) -> float:
    """The share of boxes that some image shows whole which is a smaller part of the question's first image.

    Args:
        pictures: The images of a conversation, the question's first.
        boxes: In pixels of the first image, at least one.
    """
    whole = pictures[0].full.size
    views: dict[int, ImagePart] = {1: ImagePart((0, 0, *whole), whole)}
    parts = []
    for number, picture in enumerate(pictures[1:], start=2):
        if picture.region is None or picture.source not in views:
            continue
        views[number] = views[picture.source].part(picture.region, picture.full.size)
        if _area(views[number].box) < _area(views[1].box):
            parts.append(views[number])
    return sum(any(part.holds(box) for part in parts) for box in boxes) / len(boxes)


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
