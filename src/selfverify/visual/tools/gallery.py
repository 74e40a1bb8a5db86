"""The images of one conversation: numbered as the model sees them, and the places in them.

Of each image it is known which part of the question's image it shows. So it can be measured whether a model
has looked at what the question is about (`crop_hit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from PIL import Image

from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb
from selfverify.tasks.base import Space
from selfverify.tasks.row_task import Size, clip_box, convert
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.config import SpaceName

MOST_PIXELS = 50_000_000
"""Pixels of the largest image that is looked at; they take 150 MB."""
SLIMMEST = 100
"""How many times longer than wide an image may be; image processors refuse more (Qwen's 200)."""

Region = tuple[int, int, int, int]
"""Pixels x1, y1, x2, y2 of an image as it is stored; x2 and y2 lie outside."""


def space_named(name: SpaceName) -> Space:
    """The space in which places are written, for models of all families."""
    sides = {"unit": (1, 1), "thousandths": (1000, 1000)}
    return partial(_fixed, sides[name]) if name in sides else partial(_fixed, None)


def _fixed(sides: Size | None, size: Size) -> Size:
    return sides or size


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image of a conversation.

    Args:
        full: As tools see it.
        shown: As the model is shown it: the same, or smaller.
        source: The number of the image that it was made of; None for the question's own.
        region: The part of its source that it shows, in the source's pixels; None where it is no part.
        label: A description in a few words.
    """

    full: Image.Image
    shown: Image.Image
    source: int | None = None
    region: Region | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """An image that a tool has made; its fields are those of `SeenImage`."""

    image: Image.Image
    source: int | None = None
    region: Region | None = None
    label: str = ""


@dataclass(slots=True)
class Gallery:
    """The images of a conversation in order; the first has the number 1.

    Args:
        pictures: The images so far.
        space: How the model writes places in an image, by the size in which it is shown.
        most_shown: Pixels of the largest image that is shown; larger ones are shown smaller.
        smallest: Pixels of the shortest side of a region.
        most: How many images there may be.
        spaces: For each of the pictures the space in which places in it are written, where that is given.
    """

    pictures: list[SeenImage] = field(default_factory=list)
    space: Space = field(default_factory=lambda: space_named("pixels"))
    most_shown: int = 1_000_000
    smallest: int = 4
    most: int = 64
    spaces: Sequence[Size] | None = None

    def begin(
        self, problem: str, images: Sequence[Image.Image], originals: Sequence[Image.Image] = ()
    ) -> None:
        """Take the question's images.

        Args:
            problem: Its id, for errors.
            images: As the model is shown them.
            originals: As tools see them, where that is more; equally many, or none.

        Raises:
            DataError: An image has too many pixels or cannot be read, or the numbers differ.
        """
        if originals and len(originals) != len(images):
            raise DataError(
                f"problem {problem}: {len(images)} images are shown, and {len(originals)} originals are given"
            )
        for number, (shown, full) in enumerate(zip(images, originals or images, strict=True), start=1):
            if full.width * full.height > MOST_PIXELS:
                raise DataError(
                    f"problem {problem}: image {number} has {full.width} x {full.height} pixels, more than "
                    f"{MOST_PIXELS:,}: make it smaller"
                )
            try:
                seen = to_rgb(shown)
                self.pictures.append(SeenImage(seen if full is shown else to_rgb(full), seen))
            except (OSError, TypeError, ValueError) as error:
                raise DataError(f"problem {problem}: image {number} cannot be read: {error}") from None

    def __len__(self) -> int:
        return len(self.pictures)

    def picture(self, number: int) -> SeenImage:
        """Image ``number``, from 1.

        Raises:
            ToolError: There is none.
        """
        if not 1 <= number <= len(self.pictures):
            there = f"the images are 1 to {len(self.pictures)}" if self.pictures else "there are no images"
            raise ToolError(f"there is no image {number}; {there}")
        return self.pictures[number - 1]

    def region(self, number: int, box: Sequence[float]) -> tuple[Region, str]:
        """A box that the model has written, in pixels of the image as tools see it.

        Whole pixels that the box touches belong to it. Parts that stick out are cut off, and that is said.

        Args:
            number: The image, from 1.
            box: x_min, y_min, x_max, y_max in the space in which the model writes places.

        Returns:
            The region, and what is to be said about it; empty where nothing is.

        Raises:
            ToolError: There is no such image, or the box is empty, swapped, outside or too small.
        """
        picture = self.picture(number)
        wide, high = self.written_in(number)
        x1, y1, x2, y2 = box
        written = f"the box [{', '.join(f'{value:g}' for value in box)}]"
        if not all(map(math.isfinite, box)):
            raise ToolError(f"{written} has places that are no numbers")
        if x1 >= x2 or y1 >= y2:
            raise ToolError(f"{written} is empty: x_min has to be below x_max, and y_min below y_max")
        clipped = clip_box(box, (wide, high))
        if clipped is None:
            raise ToolError(f"{written} lies outside of image {number}; places go from 0 to {wide}, {high}")
        size = picture.full.size
        low_x, low_y, high_x, high_y = convert(clipped, (wide, high), size)
        # A rounding error must not add a row of pixels.
        found = (
            math.floor(low_x + 1e-6), math.floor(low_y + 1e-6),
            min(math.ceil(high_x - 1e-6), size[0]), min(math.ceil(high_y - 1e-6), size[1]),
        )  # fmt: skip
        self._check(found, written)
        return found, "" if clipped == [*map(float, box)] else f"({written} was cut at the image's edges)"

    def written(self, number: int, region: Sequence[float]) -> list[float]:
        """A region of image ``number`` as the model writes places in it, rounded."""
        picture = self.picture(number)
        space = self.written_in(number)
        digits = 3 if space == (1, 1) else 0
        return [round(value, digits) for value in convert(region, picture.full.size, space)]

    def add(self, made: Made) -> int:
        """Take an image that a tool has made, and return its number.

        Raises:
            ToolError: It is too large or too slim, or there are too many images.
        """
        if len(self.pictures) >= self.most:
            raise ToolError(f"there are {self.most} images already, and no more can be shown")
        wide, high = made.image.size
        if wide * high > MOST_PIXELS or min(wide, high) < 1 or max(wide, high) > SLIMMEST * min(wide, high):
            raise ToolError(f"an image of {wide} x {high} pixels cannot be shown")
        full = to_rgb(made.image)
        shown = smaller(full, self.most_shown)
        self.pictures.append(SeenImage(full, shown, made.source, made.region, made.label))
        return len(self.pictures)

    def written_in(self, number: int) -> Size:
        """Width and height of the space in which places in image ``number`` are written.

        Raises:
            ToolError: There is no such image, or the model sees no places in it.
        """
        picture = self.picture(number)
        if self.spaces is not None:
            return self.spaces[number - 1]
        try:
            return self.space(picture.shown.size)
        except ValueError as error:
            raise ToolError(f"the model sees no places in an image of this size: {error}") from None

    def _check(self, region: Region, written: str) -> None:
        wide, high = region[2] - region[0], region[3] - region[1]
        if min(wide, high) < self.smallest:
            raise ToolError(
                f"{written} covers {wide} x {high} pixels, and at least {self.smallest} x {self.smallest} "
                "are needed"
            )
        if max(wide, high) > SLIMMEST * min(wide, high):
            raise ToolError(f"{written} covers {wide} x {high} pixels, which is too slim to be shown")


def smaller(image: Image.Image, pixels: int) -> Image.Image:
    """An image with its sides' ratio kept and at most so many pixels; itself where it has no more."""
    wide, high = image.size
    if wide * high <= pixels:
        return image
    scale = math.sqrt(pixels / (wide * high))
    return image.resize((max(int(wide * scale), 1), max(int(high * scale), 1)), Image.Resampling.LANCZOS)


Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the question's own image."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A part of the question's image as another one shows it, through any number of crops and enlargements.

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


CROP_HIT = "crop_hit"
"""The reward with the share of a question's boxes that were hit."""


def crop_hit(pictures: Sequence[SeenImage], boxes: Sequence[Box]) -> float:
    """The share of boxes that some image shows whole which is a smaller part of the question's first image.

    A right answer may come from a wrong crop. Where a file says where the things are that a question is about
    (V*), this can be measured without a judge.

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
