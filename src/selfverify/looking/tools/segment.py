"""Segmentation: what is inside a box, set off from what surrounds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from selfverify.looking.tools.marking import COLOURS, number_at
from selfverify.looking.tools.pictures import Gallery, Made, Region
from selfverify.looking.tools.visual_tool import Box, Found, OnImage, VisualTool

Mask = NDArray[np.bool_]
"""``[height, width]``, True inside."""


class SegmentArguments(OnImage):
    """Arguments of `ImageSegment`."""

    bounding_boxes: Annotated[list[Box], Field(min_length=1, max_length=8)]
    """One box around each thing, each as x_min, y_min, x_max, y_max."""


class Segmenter(ABC):
    """Tells what is inside boxes from what is around it."""

    @abstractmethod
    def missing(self) -> str:
        """Why it is not available here; empty where it is."""

    @abstractmethod
    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """The mask of what is inside each region.

        Raises:
            ToolError: It cannot be told.
        """


class ImageSegment(VisualTool[SegmentArguments]):
    """Marks the exact outlines of the things inside boxes.

    Args:
        segmenter: Finds them.
    """

    name = "segment"
    also = ("segment_action", "ImageSegment")
    arguments = SegmentArguments

    def __init__(self, segmenter: Segmenter) -> None:
        self.segmenter = segmenter

    def missing(self) -> str:
        """See `VisualTool`."""
        return self.segmenter.missing()

    def run(self, asked: SegmentArguments, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        full = gallery.picture(asked.image_index).full
        chosen = [gallery.region(asked.image_index, box) for box in asked.bounding_boxes]
        masks = self.segmenter.masks(full, [region for region, _ in chosen])
        told = []
        for number, (mask, (region, note)) in enumerate(zip(masks, chosen, strict=True), start=1):
            area = (region[2] - region[0]) * (region[3] - region[1])
            share = mask[region[1] : region[3], region[0] : region[2]].sum() / area
            told.append(f"{number}: the thing fills {share:.0%} of its box {note}".rstrip())
        marked = tinted(full, masks, [region for region, _ in chosen])
        label = f"image {asked.image_index} with outlined things"
        return Found("\n".join(told), [Made(marked, asked.image_index, (0, 0, *full.size), label)])


def tinted(image: Image.Image, masks: Sequence[Mask], regions: Sequence[Region]) -> Image.Image:
    """An image whose masked parts are tinted, outlined and numbered, from 1."""
    pixels, width = np.asarray(image).astype(np.float32), max(2, min(image.size) // 200)
    for number, mask in enumerate(masks):
        colour = np.asarray(COLOURS[number % len(COLOURS)], np.float32)
        pixels[mask] = 0.6 * pixels[mask] + 0.4 * colour
        pixels[mask & ~inner(mask, width)] = colour
    marked = Image.fromarray(pixels.round().astype(np.uint8))
    for number, region in enumerate(regions):
        number_at(marked, number, region)
    return marked


def inner(mask: Mask, width: int) -> Mask:
    """The part of a mask that is ``width`` pixels or more away from its edge, along rows and columns."""
    found = mask.copy()
    for axis in (0, 1):
        for step in range(1, width + 1):
            found &= np.roll(mask, step, axis) & np.roll(mask, -step, axis)
    return found
