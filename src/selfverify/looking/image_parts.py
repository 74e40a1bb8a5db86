"""Which part of an image another one shows, through any number of crops and enlargements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the question's own image."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A part of the question's image as one that a tool has made shows it.

    Args:
        box: The part.
        size: Width and height of the image that shows it, as tools see it.
    """

    box: Box
    size: tuple[int, int]

    def part(self, region: Sequence[float], size: Sequence[int]) -> ImagePart:
        """The view of an image of ``size`` that was made of a ``region`` of this one, in its pixels."""
        across = (self.box[2] - self.box[0]) / self.size[0]
        down = (self.box[3] - self.box[1]) / self.size[1]
        x1, y1, x2, y2 = region
        left, top = self.box[0], self.box[1]
        box = (left + x1 * across, top + y1 * down, left + x2 * across, top + y2 * down)
        return ImagePart(box, (size[0], size[1]))

    def scale(self, most_shown: int) -> float:
        """Shown pixels per pixel of the question's image, where at most so many pixels are shown at all."""
        wide, high = self.size
        smaller = min(math.sqrt(most_shown / (wide * high)), 1.0)
        return smaller * wide / (self.box[2] - self.box[0])

    def holds(self, box: Box) -> bool:
        """Whether it shows all of a box, up to half a pixel."""
        inside = (box[0] - self.box[0], box[1] - self.box[1], self.box[2] - box[2], self.box[3] - box[3])
        return min(inside) >= -0.5
