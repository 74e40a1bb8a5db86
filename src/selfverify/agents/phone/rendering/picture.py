"""A screen as a picture, drawn with Pillow in a font that comes with matplotlib: the same everywhere."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from selfverify.agents.phone.rendering.icons import STROKE, shapes
from selfverify.agents.phone.rendering.style import (
    CARD,
    DIM,
    FADED,
    INK,
    KEY,
    KEYBOARD,
    LINES,
    PAGE,
    PAPER,
    QUIET,
    ROWS_OF_KEYS,
    Colour,
    accent,
)
from selfverify.agents.phone.system.glass import (
    BAR,
    HEIGHT,
    ICON,
    KEYS,
    LINE,
    STATUS,
    TABS,
    WIDTH,
    Box,
    Layout,
)
from selfverify.agents.phone.system.widgets import Widget

FINE = 2
"""Shapes are drawn this many times larger and then reduced, so that edges are smooth."""
PAD = 28


@lru_cache(maxsize=32)
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    found = find_spec("matplotlib")
    assert found is not None and found.origin is not None
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(
        str(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size * FINE
    )


def picture(look: Layout, beneath: Layout | None = None, clock: str = "09:41") -> Image.Image:
    """Draw a screen.

    Args:
        look: What is on the glass.
        beneath: The page under a dialog or a drawer, which is drawn dimmed.
        clock: The time in the status line.

    Returns:
        An RGB image of `glass.WIDTH` by `glass.HEIGHT` pixels.
    """
    canvas = _Canvas()
    if beneath is not None:
        _page(canvas, beneath, clock)
        canvas.dim()
    elif look.screen.style in ("dialog", "drawer"):
        canvas.box((0, 0, WIDTH, HEIGHT), DIM)
    if look.screen.style in ("page", "home"):
        _page(canvas, look, clock)
    else:
        _card(canvas, look)
    if look.focus:
        _keyboard(canvas)
    if look.toast:
        _toast(canvas, look.toast, HEIGHT - (KEYS if look.focus else TABS if look.screen.tabs else 0))
    return canvas.image.reduce(FINE)


class _Canvas:
    """Draws in the pixels of the glass on a larger image."""

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
        font = _font(size, bold)
        if font.getlength(said) > room * FINE:
            while said and font.getlength(said + "…") > room * FINE:
                said = said[:-1]
            said += "…"
        self.draw.text((x * FINE, y * FINE), said, fill, font, anchor)

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


def _page(canvas: _Canvas, look: Layout, clock: str) -> None:
    colour = accent(look.app)
    home = look.screen.style == "home"
    if home:
        canvas.box((0, 0, WIDTH, HEIGHT), colour)
        canvas.text(WIDTH / 2, STATUS + 56, clock, 56, PAPER, WIDTH, anchor="mm")
    else:
        canvas.box((0, 0, WIDTH, STATUS + BAR), colour)
        left = ICON if any(widget.id == "menu" for widget in look.screen.bar) else PAD
        icons = sum(widget.id != "menu" for widget in look.screen.bar) * ICON
        _title(canvas, look, left, WIDTH - icons - 8, STATUS + BAR / 2, PAPER)
    canvas.text(PAD, STATUS / 2 + 2, clock, 17, PAPER, 100)
    canvas.box((WIDTH - 60, 10, WIDTH - 28, 25), PAPER, 3)
    canvas.box((WIDTH - 27, 14, WIDTH - 24, 21), PAPER, 1)
    for widget, box in look.placed:
        _widget(canvas, look, widget, box, colour)
    _scroll_bar(canvas, look)


def _title(canvas: _Canvas, look: Layout, left: float, right: float, y: float, fill: Colour) -> None:
    screen = look.screen
    counted = "" if screen.count is None else f"  ({screen.count})"
    canvas.text(left, y, f"{screen.title}{counted}", 28, fill, right - left - 8, bold=True)


def _card(canvas: _Canvas, look: Layout) -> None:
    x1, y1, x2, _ = look.frame
    canvas.box(look.frame, CARD, 28 if look.screen.style == "dialog" else 0)
    colour = accent(look.app)
    if look.screen.style == "drawer":
        canvas.box((x1, y1, x2, y1 + BAR), colour)
        _title(canvas, look, x1 + PAD, x2, y1 + BAR / 2, PAPER)
    else:
        _title(canvas, look, x1 + PAD, x2 - PAD, y1 + LINE / 2 + 4, INK)
    for widget, box in look.placed:
        _widget(canvas, look, widget, box, colour)
    _scroll_bar(canvas, look)


def _widget(canvas: _Canvas, look: Layout, widget: Widget, box: Box, colour: Colour) -> None:
    x1, y1, x2, y2 = box
    middle = (y1 + y2) / 2
    left, room = x1 + PAD, x2 - x1 - 2 * PAD
    plain = look.screen.style == "page"
    if widget.role in ("row", "field", "text", "option", "switch") and widget.text + widget.value and plain:
        canvas.box(box, CARD)
        canvas.box((x1 + PAD, y2 - 1, x2, y2), LINES)
    match widget.role:
        case "icon":
            ink = (
                PAPER
                if widget.enabled
                else tuple((2 * c + p) // 3 for c, p in zip(colour, PAPER, strict=True))
            )
            if widget is look.screen.floating:
                x, radius = (x1 + x2) / 2, (x2 - x1) / 2
                canvas.disc(x, middle + 4, radius, LINES)
                canvas.disc(x, middle, radius, colour)
            canvas.icon(widget.id, widget.on, (x1 + x2) / 2, middle, 34, ink)  # type: ignore[arg-type]
        case "app":
            x, y = (x1 + x2) / 2, y1 + 66
            half = 50
            canvas.box((round(x) - half, y - half, round(x) + half, y + half), accent(widget.id), 26)
            canvas.icon(widget.id, None, x, y, 54, PAPER)
            canvas.text(x, y1 + 142, widget.text, 20, PAPER, x2 - x1, anchor="mm")
        case "tab":
            canvas.box(box, CARD)
            canvas.box((x1, y1, x2, y1 + 1), LINES)
            if widget.on:
                canvas.box((x1 + 24, y1, x2 - 24, y1 + 5), colour, 2)
            canvas.text((x1 + x2) / 2, middle, widget.text, 22, colour if widget.on else QUIET, x2 - x1 - 8,
                        bold=bool(widget.on), anchor="mm")  # fmt: skip
        case "switch":
            canvas.text(left, middle, widget.text, 25, INK, room - 90)
            _knob(canvas, x2 - PAD - 60, middle, bool(widget.on), colour)
        case "option":
            canvas.disc(left + 14, middle, 15, colour if widget.on else QUIET)
            canvas.disc(left + 14, middle, 12, CARD)
            if widget.on:
                canvas.disc(left + 14, middle, 8, colour)
            canvas.text(left + 50, middle, widget.text, 25, INK, room - 50)
        case "button":
            fill = colour if widget.enabled else FADED
            canvas.box((x1 + PAD, round(middle) - 32, x2 - PAD, round(middle) + 32), fill, 32)
            canvas.text((x1 + x2) / 2, middle, widget.text, 25, PAPER, room, bold=True, anchor="mm")
        case "field":
            focused = widget.id == look.focus
            canvas.text(left, middle - 26, widget.text, 19, colour if focused else QUIET, room)
            canvas.text(left, middle + 10, widget.value + ("|" if focused else ""), 25, INK, room)
            canvas.box((x1 + PAD, round(middle) + 34, x2 - PAD, round(middle) + (37 if focused else 35)),
                       colour if focused else QUIET)  # fmt: skip
        case _:
            _lines(canvas, widget, box)


def _lines(canvas: _Canvas, widget: Widget, box: Box) -> None:
    """A row or a text: its label and, below it, its value; a text of several rows is wrapped."""
    x1, y1, x2, y2 = box
    room = x2 - x1 - 2 * PAD - (110 if widget.part else 0)
    middle, left = (y1 + y2) / 2, x1 + PAD
    if widget.span > 1:
        for i, said in enumerate(_wrapped(widget.value, room)):
            canvas.text(left, y1 + 40 + 36 * i, said, 24, INK, room)
    elif not widget.value:
        canvas.text(left, middle, widget.text, 25, INK, room)
    elif y2 - y1 <= LINE:
        canvas.text(left, middle, widget.text, 25, INK, room * 0.55)
        canvas.text(x2 - PAD, middle, widget.value, 22, QUIET, room * 0.4, anchor="rm")
    else:
        top, small = (widget.text, 25) if widget.role == "row" else (widget.text, 20)
        canvas.text(left, middle - 20, top, small, INK if widget.role == "row" else QUIET, room)
        below, large = (QUIET, 21) if widget.role == "row" else (INK, 25)
        canvas.text(left, middle + 20, widget.value, large, below, room)


def _wrapped(said: str, room: float) -> list[str]:
    lines: list[str] = [""]
    for word in said.split():
        longer = f"{lines[-1]} {word}".strip()
        if _font(24).getlength(longer) > room * FINE and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _knob(canvas: _Canvas, x: int, middle: float, on: bool, colour: Colour) -> None:
    y = round(middle)
    canvas.box((x, y - 16, x + 60, y + 16), colour if on else FADED, 16)
    canvas.disc(x + (44 if on else 16), y, 12, PAPER)


def _scroll_bar(canvas: _Canvas, look: Layout) -> None:
    if not look.end:
        return
    _, y1, x2, y2 = look.frame
    top = y1 + (BAR if look.screen.style == "page" else LINE)
    bottom = min([y2, *(box[1] for widget, box in look.placed if widget.role == "tab")])
    if look.focus:
        bottom = min(bottom, HEIGHT - KEYS)
    whole = bottom - top
    size = max(whole * look.room // (look.room + look.end), 40)
    y = top + (whole - size) * look.scroll // look.end
    canvas.box((x2 - 8, y, x2 - 3, y + size), QUIET, 2)


def _keyboard(canvas: _Canvas) -> None:
    top = HEIGHT - KEYS
    canvas.box((0, top, WIDTH, HEIGHT), KEYBOARD)
    for i, keys in enumerate(ROWS_OF_KEYS):
        width = 48
        x = (WIDTH - (width + 5) * len(keys)) // 2
        for key in keys:
            y = top + 12 + 78 * i
            canvas.box((x, y, x + width, y + 66), KEY, 8)
            canvas.text(x + width / 2, y + 33, key, 24, INK, width, anchor="mm")
            x += width + 5
    y = top + 12 + 78 * 3
    canvas.box((120, y, 400, y + 66), KEY, 8)
    canvas.box((410, y, 530, y + 66), QUIET, 8)
    canvas.text(470, y + 33, "enter", 22, PAPER, 110, anchor="mm")


def _toast(canvas: _Canvas, said: str, bottom: int) -> None:
    half = min(_font(22).getlength(said) / FINE / 2 + 30, WIDTH / 2 - 20)
    middle = WIDTH // 2
    canvas.box((round(middle - half), bottom - 76, round(middle + half), bottom - 20), INK, 28)
    canvas.text(middle, bottom - 48, said, 22, PAPER, 2 * half - 40, anchor="mm")
