"""Crop and zoom: parts of images."""

from __future__ import annotations

import math

from PIL import Image
from pydantic import Field

from selfverify.looking.tools.pictures import Gallery, Made, Region
from selfverify.looking.tools.visual_tool import Found, InBox, VisualTool


class CropArguments(InBox):
    """Arguments of `Crop`."""

    padding: float = Field(0.0, ge=0.0, le=1.0)
    """How much of the box's sides to add on each side, as a fraction."""


class Crop(VisualTool[CropArguments]):
    """Cuts a part out of an image and shows it at its own size."""

    name = "crop"
    also = ("crop_action", "Crop", "crop_image_normalized")
    arguments = CropArguments
    at_once = True

    def run(self, asked: CropArguments, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        region, note = gallery.region(asked.image_index, asked.bounding_box)
        full = gallery.picture(asked.image_index).full
        part = widened(region, full.size, asked.padding)
        return Found(
            note, [Made(full.crop(part), asked.image_index, part, f"part of image {asked.image_index}")]
        )


class ZoomIn(VisualTool[InBox]):
    """Enlarges a part of an image, with a little of what surrounds it.

    The part is at least a tenth of the image's sides, and its sides' ratio is kept. (VTS-V's release
    stretches it to the ratio of the whole image.)
    """

    name = "zoom_in"
    also = ("zoomin_action", "ZoomInAction", "image_zoom_in_tool")
    arguments = InBox
    at_once = True

    def run(self, asked: InBox, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        region, note = gallery.region(asked.image_index, asked.bounding_box)
        full = gallery.picture(asked.image_index).full
        part = widened(region, full.size, 0.05, least=0.1)
        zoomed = enlarged(full.crop(part), max(full.size), gallery.most_shown)
        return Found(
            note, [Made(zoomed, asked.image_index, part, f"part of image {asked.image_index}, enlarged")]
        )


def widened(region: Region, size: tuple[int, int], padding: float, least: float = 0.0) -> Region:
    """A region with ``padding`` of its sides on each side, within the image.

    Args:
        region: The region.
        size: The image's width and height.
        padding: Fraction of the region's own sides.
        least: Fraction of the image's sides that the region has at least; it is moved inside for that.
    """
    low, high = [0, 0], [0, 0]
    for axis in (0, 1):
        first, last, side = region[axis], region[axis + 2], size[axis]
        more = padding * (last - first)
        first, last = math.floor(first - more), math.ceil(last + more)
        lacking = math.ceil(least * side) - (last - first)
        if lacking > 0:
            first -= lacking // 2
            last += lacking - lacking // 2
        # What sticks out at one end is added at the other where a least size is asked for.
        if least:
            shift = max(-first, 0) - max(last - side, 0)
            first, last = first + shift, last + shift
        low[axis], high[axis] = max(first, 0), min(last, side)
    return low[0], low[1], high[0], high[1]


def enlarged(image: Image.Image, longest: int, pixels: int) -> Image.Image:
    """An image whose longest side is ``longest``, or shorter where it would have more than ``pixels``."""
    wide, high = image.size
    scale = min(longest / max(wide, high), math.sqrt(pixels / (wide * high)))
    if scale <= 1:
        return image
    return image.resize((max(int(wide * scale), 1), max(int(high * scale), 1)), Image.Resampling.BICUBIC)
