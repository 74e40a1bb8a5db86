"""Segmentation: what is inside a box, set off from what surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from selfverify.looking.tools.marking import COLOURS, number_at
from selfverify.looking.tools.pictures import Gallery, Made, Region, smaller
from selfverify.looking.tools.visual_tool import Box, Found, OnImage, VisualTool
from selfverify.tasks.tools import ToolError

Mask = NDArray[np.bool_]
"""``[height, width]``, True inside."""


class SegmentArguments(OnImage):
    """Arguments of `ImageSegment`."""

    bounding_boxes: Annotated[list[Box], Field(min_length=1, max_length=8)]
    """One box around each thing, each as x_min, y_min, x_max, y_max."""


class ImageSegment(VisualTool[SegmentArguments]):
    """Marks the exact outlines of the things inside boxes.

    GrabCut (Rother et al. 2004) in OpenCV needs no weights: it tells things by their colours from what is
    around them.
    """

    name = "segment"
    also = ("segment_action", "ImageSegment")
    arguments = SegmentArguments
    working_pixels = 250_000
    """GrabCut works on an image of at most so many pixels; its time grows with them."""

    def missing(self) -> str:
        """See `VisualTool`."""
        return "" if find_spec("cv2") else "OpenCV is not installed: pip install 'selfverify[looking]'"

    def run(self, asked: SegmentArguments, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        full = gallery.picture(asked.image_index).full
        chosen = [gallery.region(asked.image_index, box) for box in asked.bounding_boxes]
        masks = self.masks(full, [region for region, _ in chosen])
        told = []
        for number, (mask, (region, note)) in enumerate(zip(masks, chosen, strict=True), start=1):
            area = (region[2] - region[0]) * (region[3] - region[1])
            share = mask[region[1] : region[3], region[0] : region[2]].sum() / area
            told.append(f"{number}: the thing fills {share:.0%} of its box {note}".rstrip())
        marked = tinted(full, masks, [region for region, _ in chosen])
        label = f"image {asked.image_index} with outlined things"
        return Found("\n".join(told), [Made(marked, asked.image_index, (0, 0, *full.size), label)])

    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """The mask of what is inside each region.

        Raises:
            ToolError: A region fills the image, so that nothing is around it.
        """
        import cv2

        small = smaller(image, self.working_pixels)
        pixels = np.ascontiguousarray(np.asarray(small)[:, :, ::-1])
        scale = small.width / image.width, small.height / image.height
        found = []
        for number, region in enumerate(regions, start=1):
            if region == (0, 0, *image.size):
                raise ToolError(f"box {number} is the whole image; leave something around the thing")
            x1, y1, x2, y2 = (round(value * scale[i % 2]) for i, value in enumerate(region))
            marks = np.zeros(pixels.shape[:2], np.uint8)
            cv2.setRNGSeed(0)  # its clusters begin at random
            rectangle = (x1, y1, max(x2 - x1, 1), max(y2 - y1, 1))
            models = np.zeros((1, 65)), np.zeros((1, 65))
            cv2.grabCut(pixels, marks, rectangle, *models, 5, cv2.GC_INIT_WITH_RECT)
            inside = Image.fromarray(np.isin(marks, (cv2.GC_FGD, cv2.GC_PR_FGD)))
            found.append(np.asarray(inside.resize(image.size, Image.Resampling.NEAREST)))
        return found


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
