"""Tools that show parts of images or lay one over another, and what is drawn on images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from selfverify.core.images import to_rgb
from selfverify.visual.tools.base import Arguments, Found, ImageIndex, InBox, VisualTool
from selfverify.visual.tools.gallery import Gallery, Made, Region


class CropArguments(InBox):
    """Arguments of `Crop`."""

    padding: float = Field(0.0, ge=0.0, le=1.0)
    """How much of the box's sides to add on each side, as a fraction."""


class Crop(VisualTool[CropArguments]):
    """Cuts a part out of an image and shows it at its own size."""

    name = "crop"
    also = ("crop_image_normalized",)
    arguments = CropArguments
    at_once = True

    def run(self, asked: CropArguments, gallery: Gallery) -> Found:
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
    also = ("image_zoom_in_tool",)
    arguments = InBox
    at_once = True

    def run(self, asked: InBox, gallery: Gallery) -> Found:
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
        # The part that sticks out at one end is added at the other where a least size is asked for.
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


class OverlayArguments(Arguments):
    """Arguments of `Overlay`."""

    background_image_index: ImageIndex
    """The number of the image below."""
    overlay_image_index: ImageIndex
    """The number of the image that is laid over it; it is brought to the same size."""
    overlay_proportion: float = Field(0.3, ge=0.0, le=1.0)
    """How much of it is seen: 0 is nothing, 1 covers the image below."""


class Overlay(VisualTool[OverlayArguments]):
    """Lays one image, such as a depth map, half-transparent over another."""

    name = "overlay"
    arguments = OverlayArguments
    at_once = True

    def run(self, asked: OverlayArguments, gallery: Gallery) -> Found:
        below = gallery.picture(asked.background_image_index).full
        above = gallery.picture(asked.overlay_image_index).full
        if above.size != below.size:
            above = above.resize(below.size, Image.Resampling.BICUBIC)
        label = f"image {asked.overlay_image_index} over image {asked.background_image_index}"
        blended = Image.blend(below, above, asked.overlay_proportion)
        return Found("", [Made(blended, asked.background_image_index, (0, 0, *below.size), label)])


COLOURS = ((230, 25, 75), (60, 180, 75), (0, 130, 200), (245, 130, 48), (145, 30, 180), (0, 128, 128))
"""Colours that can be told apart, taken in turn."""


def boxes_drawn(image: Image.Image, boxes: Sequence[Sequence[float]]) -> Image.Image:
    """A copy of an image with boxes x1, y1, x2, y2 in pixels, numbered from 1."""
    marked = image.copy()
    draw = ImageDraw.Draw(marked)
    width = max(2, min(image.size) // 200)
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        left, top = min(x1, image.width - 1), min(y1, image.height - 1)  # the last pixel may hold all of it
        right, low = min(max(x2, x1 + 1), image.width - 1), min(max(y2, y1 + 1), image.height - 1)
        draw.rectangle((left, top, right, low), outline=COLOURS[number % len(COLOURS)], width=width)
        number_at(marked, number, (x1, y1, x2, y2))
    return marked


def number_at(image: Image.Image, number: int, box: Sequence[float]) -> None:
    """Write ``number`` + 1 into a corner of a box, on its colour."""
    draw, size = ImageDraw.Draw(image), max(10, min(image.size) // 40)
    font = ImageFont.load_default(size=size)
    at = float(box[0]), float(box[1])
    left, top, right, low = draw.textbbox(at, str(number + 1), font=font)
    draw.rectangle((left - 2, top - 2, right + 2, low + 2), fill=COLOURS[number % len(COLOURS)])
    draw.text(at, str(number + 1), fill="white", font=font)


MOST_MARKS = 12
"""Parts of an image that get a number."""
WORKING_SIDE = 96
"""Pixels of the longer side of the copy in which parts are looked for."""
COLOUR_COUNT, SMALLEST = 6, 0.01
"""Colours that an image is divided into; the smallest part that gets a number, as a share of the image."""
GLYPHS = (
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001001001001", "111101111101111", "111101111001111",
)  # fmt: skip
"""The digits 0 to 9 in five rows of three pixels, so that they can be read in the smallest images."""

Spot = tuple[float, float]
"""x and y in pixels."""


def marked(image: Image.Image) -> Image.Image:
    """A copy of an image with the numbers 1, 2, ... on its parts, in reading order.

    By these a model can refer to the parts: Set-of-Mark prompting (Yang et al. 2023).

    Args:
        image: Any; the copy is RGB. The same image always gets the same numbers.
    """
    shown = to_rgb(image)
    return with_numbers(shown, spots_of(shown), max(1, min(shown.size) // 100))


def with_numbers(image: Image.Image, spots: Sequence[Spot], scale: int = 1) -> Image.Image:
    """A copy of an image with the numbers 1, 2, ... around spots, white on black.

    Args:
        image: The image.
        spots: Where the middle of each number is; numbers are moved so far that they are whole.
        scale: Pixels of the image for one of a digit's 3 x 5.
    """
    made = image.copy()
    for number, (x, y) in enumerate(spots, start=1):
        plate = _plate(number, scale)
        left = min(max(round(x - plate.width / 2), 0), max(made.width - plate.width, 0))
        top = min(max(round(y - plate.height / 2), 0), max(made.height - plate.height, 0))
        made.paste(plate.convert(made.mode), (left, top))
    return made


def _plate(number: int, scale: int) -> Image.Image:
    digits = [np.array([*GLYPHS[int(digit)]], dtype=np.uint8).reshape(5, 3) for digit in str(number)]
    row = np.concatenate([np.pad(digit, ((0, 0), (0, 1))) for digit in digits], axis=1)
    plate = np.pad(row, ((1, 1), (1, 0))) * np.uint8(255)
    return Image.fromarray(np.kron(plate, np.ones((scale, scale), dtype=np.uint8)))


def spots_of(image: Image.Image) -> list[Spot]:
    """Where the numbers of an image's parts are to stand, in reading order.

    The paper takes its parts from SEEM or SAM. Here they are areas of like colour that hang together, which
    needs no weights and finds things less well. As there each number stands where it is furthest from its
    part's edge.
    """
    from scipy import ndimage
    from sklearn.cluster import KMeans

    ratio = min(1.0, WORKING_SIDE / max(image.size))
    size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BOX), dtype=np.float64)
    colours = min(COLOUR_COUNT, len(np.unique(pixels.reshape(-1, 3), axis=0)))
    found = KMeans(colours, n_init=1, random_state=0).fit_predict(pixels.reshape(-1, 3))
    areas = found.reshape(pixels.shape[:2])
    parts: list[tuple[int, float, float]] = []
    for colour in range(colours):
        labels, count = ndimage.label(areas == colour)
        for part in range(1, count + 1):
            mask = labels == part
            if mask.sum() >= SMALLEST * mask.size:
                parts.append((int(mask.sum()), *_middle(mask)))
    largest = sorted(parts, reverse=True)[:MOST_MARKS]
    spots = [((x + 0.5) * image.width / size[0], (y + 0.5) * image.height / size[1]) for _, x, y in largest]
    return sorted(spots, key=lambda spot: (spot[1], spot[0]))


def _middle(mask: NDArray[np.bool_]) -> Spot:
    """The place that is furthest from the edges of a part and of the image."""
    from scipy.ndimage import distance_transform_edt

    distance = distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(int(distance.argmax()), distance.shape)
    return float(x), float(y)
