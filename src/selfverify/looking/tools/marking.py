"""Numbered boxes drawn on an image."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

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
