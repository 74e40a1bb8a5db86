"""A pen that draws boxes, texts and icons in the pixels of the glass, with smooth edges."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from selfverify_phone.rendering.icons import STROKE, shapes
from selfverify_phone.rendering.style import PAGE, Colour
from selfverify_phone.system.glass import HEIGHT, WIDTH, Box

FINE = 2
"""Shapes are drawn this many times larger and then reduced, so that edges are smooth."""


@lru_cache(maxsize=32)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font in a size of pixels of the glass."""
    found = find_spec("matplotlib")
    assert found is not None and found.origin is not None
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(
        str(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size * FINE
    )


class Pen:
    """Draws on an image that is `FINE` times as large as the glass."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE), PAGE)
        self.draw = ImageDraw.Draw(self.image)

    def box(self, box: Box, fill: Colour, round: float = 0, edge: Colour | None = None) -> None:
        x1, y1, x2, y2 = (side * FINE for side in box)
        self.draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), round * FINE, fill, edge, FINE if edge else 0)

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        self.draw.ellipse([(v * FINE) for v in (x - radius, y - radius, x + radius, y + radius)], fill)

    def text(
        self,
        x: float,
        y: float,
        said: str,
        size: int,
        fill: Colour,
        room: float,
        bold: bool = False,
        anchor: str = "lm",
    ) -> None:
        """Write one line; what does not fit is left out, and three points stand for it."""
        said = "".join(c if c.isprintable() else " " for c in said)
        face = font(size, bold)
        if face.getlength(said) > room * FINE:
            while said and face.getlength(said + "…") > room * FINE:
                said = said[:-1]
            said += "…"
        self.draw.text((x * FINE, y * FINE), said, fill, face, anchor)

    def icon(self, name: str, on: bool | None, x: float, y: float, size: float, fill: Colour) -> None:
        """Draw an icon around a point."""
        scale = size / 24 * FINE
        left, top = x * FINE - 12 * scale, y * FINE - 12 * scale
        for shape in shapes(name, on):
            points = [(left + px * scale, top + py * scale) for px, py in shape.points]
            width = round(STROKE * scale)
            if shape.sort == "line":
                self.draw.line(points, fill, width, "curve")
                for px, py in (points[0], points[-1]):
                    half = width / 2 - 0.5
                    self.draw.ellipse((px - half, py - half, px + half, py + half), fill)
            elif shape.sort == "area":
                self.draw.polygon(points, fill)
            else:
                (px, py), radius = points[0], shape.size * scale
                box = (px - radius, py - radius, px + radius, py + radius)
                if shape.sort == "disc":
                    self.draw.ellipse(box, fill)
                else:
                    self.draw.ellipse(box, None, fill, width)

    def dim(self) -> None:
        """Darken everything that is drawn."""
        self.image = self.image.point([v * 45 // 100 for v in range(256)] * 3)
        self.draw = ImageDraw.Draw(self.image)
