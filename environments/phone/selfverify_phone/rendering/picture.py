"""A screen as a picture, drawn with Pillow in a font that comes with matplotlib, whatever the machine has."""

from __future__ import annotations

from PIL import Image

from selfverify_phone.rendering.pen import FINE, Pen, font
from selfverify_phone.rendering.style import (
    CARD,
    DIM,
    FADED,
    INK,
    KEY,
    KEYBOARD,
    LINES,
    PAPER,
    QUIET,
    ROWS_OF_KEYS,
    Colour,
    accent,
)
from selfverify_phone.system.glass import (
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
from selfverify_phone.system.widgets import Widget

PAD = 28


def picture(look: Layout, beneath: Layout | None = None, clock: str = "09:41") -> Image.Image:
    """Draw a screen.

    Args:
        look: What is on the glass.
        beneath: The page under a dialog or a drawer, which is drawn dimmed.
        clock: The time in the status line.

    Returns:
        An RGB image of `glass.WIDTH` by `glass.HEIGHT` pixels.
    """
    pen = Pen()
    if beneath is not None:
        _page(pen, beneath, clock)
        pen.dim()
    elif look.screen.style in ("dialog", "drawer"):
        pen.box((0, 0, WIDTH, HEIGHT), DIM)
    if look.screen.style in ("page", "home"):
        _page(pen, look, clock)
    else:
        _card(pen, look)
    if look.focus:
        _keyboard(pen)
    if look.toast:
        _toast(pen, look.toast, HEIGHT - (KEYS if look.focus else TABS if look.screen.tabs else 0))
    return pen.image.reduce(FINE)


def _page(pen: Pen, look: Layout, clock: str) -> None:
    colour = accent(look.app)
    home = look.screen.style == "home"
    if home:
        pen.box((0, 0, WIDTH, HEIGHT), colour)
        pen.text(WIDTH / 2, STATUS + 56, clock, 56, PAPER, WIDTH, anchor="mm")
    else:
        pen.box((0, 0, WIDTH, STATUS + BAR), colour)
        left = ICON if any(widget.id == "menu" for widget in look.screen.bar) else PAD
        icons = sum(widget.id != "menu" for widget in look.screen.bar) * ICON
        _title(pen, look, left, WIDTH - icons - 8, STATUS + BAR / 2, PAPER)
    pen.text(PAD, STATUS / 2 + 2, clock, 17, PAPER, 100)
    pen.box((WIDTH - 60, 10, WIDTH - 28, 25), PAPER, 3)
    pen.box((WIDTH - 27, 14, WIDTH - 24, 21), PAPER, 1)
    for widget, box in look.placed:
        _widget(pen, look, widget, box, colour)
    _scroll_bar(pen, look)


def _title(pen: Pen, look: Layout, left: float, right: float, y: float, fill: Colour) -> None:
    screen = look.screen
    counted = "" if screen.count is None else f"  ({screen.count})"
    pen.text(left, y, f"{screen.title}{counted}", 28, fill, right - left - 8, bold=True)


def _card(pen: Pen, look: Layout) -> None:
    x1, y1, x2, _ = look.frame
    pen.box(look.frame, CARD, 28 if look.screen.style == "dialog" else 0)
    colour = accent(look.app)
    if look.screen.style == "drawer":
        pen.box((x1, y1, x2, y1 + BAR), colour)
        _title(pen, look, x1 + PAD, x2, y1 + BAR / 2, PAPER)
    else:
        _title(pen, look, x1 + PAD, x2 - PAD, y1 + LINE / 2 + 4, INK)
    for widget, box in look.placed:
        _widget(pen, look, widget, box, colour)
    _scroll_bar(pen, look)


def _widget(pen: Pen, look: Layout, widget: Widget, box: Box, colour: Colour) -> None:
    x1, y1, x2, y2 = box
    middle = (y1 + y2) / 2
    left, room = x1 + PAD, x2 - x1 - 2 * PAD
    plain = look.screen.style == "page"
    if widget.role in ("row", "field", "text", "option", "switch") and widget.text + widget.value and plain:
        pen.box(box, CARD)
        pen.box((x1 + PAD, y2 - 1, x2, y2), LINES)
    match widget.role:
        case "icon":
            ink = (
                PAPER
                if widget.enabled
                else tuple((2 * c + p) // 3 for c, p in zip(colour, PAPER, strict=True))
            )
            if widget is look.screen.floating:
                x, radius = (x1 + x2) / 2, (x2 - x1) / 2
                pen.disc(x, middle + 4, radius, LINES)
                pen.disc(x, middle, radius, colour)
            pen.icon(widget.id, widget.on, (x1 + x2) / 2, middle, 34, ink)  # type: ignore[arg-type]
        case "app":
            x, y = (x1 + x2) / 2, y1 + 66
            half = 50
            pen.box((round(x) - half, y - half, round(x) + half, y + half), accent(widget.id), 26)
            pen.icon(widget.id, None, x, y, 54, PAPER)
            pen.text(x, y1 + 142, widget.text, 20, PAPER, x2 - x1, anchor="mm")
        case "tab":
            pen.box(box, CARD)
            pen.box((x1, y1, x2, y1 + 1), LINES)
            if widget.on:
                pen.box((x1 + 24, y1, x2 - 24, y1 + 5), colour, 2)
            pen.text((x1 + x2) / 2, middle, widget.text, 22, colour if widget.on else QUIET, x2 - x1 - 8,
                        bold=bool(widget.on), anchor="mm")  # fmt: skip
        case "switch":
            pen.text(left, middle, widget.text, 25, INK, room - 90)
            _knob(pen, x2 - PAD - 60, middle, bool(widget.on), colour)
        case "option":
            pen.disc(left + 14, middle, 15, colour if widget.on else QUIET)
            pen.disc(left + 14, middle, 12, CARD)
            if widget.on:
                pen.disc(left + 14, middle, 8, colour)
            pen.text(left + 50, middle, widget.text, 25, INK, room - 50)
        case "button":
            fill = colour if widget.enabled else FADED
            pen.box((x1 + PAD, round(middle) - 32, x2 - PAD, round(middle) + 32), fill, 32)
            pen.text((x1 + x2) / 2, middle, widget.text, 25, PAPER, room, bold=True, anchor="mm")
        case "field":
            focused = widget.id == look.focus
            pen.text(left, middle - 26, widget.text, 19, colour if focused else QUIET, room)
            pen.text(left, middle + 10, widget.value + ("|" if focused else ""), 25, INK, room)
            pen.box((x1 + PAD, round(middle) + 34, x2 - PAD, round(middle) + (37 if focused else 35)),
                       colour if focused else QUIET)  # fmt: skip
        case _:
            _lines(pen, widget, box)


def _lines(pen: Pen, widget: Widget, box: Box) -> None:
    """A row or a text: its label and, below it, its value; a text of several rows is wrapped."""
    x1, y1, x2, y2 = box
    room = x2 - x1 - 2 * PAD - (110 if widget.part else 0)
    middle, left = (y1 + y2) / 2, x1 + PAD
    if widget.span > 1:
        for i, said in enumerate(_wrapped(widget.value, room)):
            pen.text(left, y1 + 40 + 36 * i, said, 24, INK, room)
    elif not widget.value:
        pen.text(left, middle, widget.text, 25, INK, room)
    elif y2 - y1 <= LINE:
        pen.text(left, middle, widget.text, 25, INK, room * 0.55)
        pen.text(x2 - PAD, middle, widget.value, 22, QUIET, room * 0.4, anchor="rm")
    else:
        top, small = (widget.text, 25) if widget.role == "row" else (widget.text, 20)
        pen.text(left, middle - 20, top, small, INK if widget.role == "row" else QUIET, room)
        below, large = (QUIET, 21) if widget.role == "row" else (INK, 25)
        pen.text(left, middle + 20, widget.value, large, below, room)


def _wrapped(said: str, room: float) -> list[str]:
    lines: list[str] = [""]
    for word in said.split():
        longer = f"{lines[-1]} {word}".strip()
        if font(24).getlength(longer) > room * FINE and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _knob(pen: Pen, x: int, middle: float, on: bool, colour: Colour) -> None:
    y = round(middle)
    pen.box((x, y - 16, x + 60, y + 16), colour if on else FADED, 16)
    pen.disc(x + (44 if on else 16), y, 12, PAPER)


def _scroll_bar(pen: Pen, look: Layout) -> None:
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
    pen.box((x2 - 8, y, x2 - 3, y + size), QUIET, 2)


def _keyboard(pen: Pen) -> None:
    top = HEIGHT - KEYS
    pen.box((0, top, WIDTH, HEIGHT), KEYBOARD)
    for i, keys in enumerate(ROWS_OF_KEYS):
        width = 48
        x = (WIDTH - (width + 5) * len(keys)) // 2
        for key in keys:
            y = top + 12 + 78 * i
            pen.box((x, y, x + width, y + 66), KEY, 8)
            pen.text(x + width / 2, y + 33, key, 24, INK, width, anchor="mm")
            x += width + 5
    y = top + 12 + 78 * 3
    pen.box((120, y, 400, y + 66), KEY, 8)
    pen.box((410, y, 530, y + 66), QUIET, 8)
    pen.text(470, y + 33, "enter", 22, PAPER, 110, anchor="mm")


def _toast(pen: Pen, said: str, bottom: int) -> None:
    half = min(font(22).getlength(said) / FINE / 2 + 30, WIDTH / 2 - 20)
    middle = WIDTH // 2
    pen.box((round(middle - half), bottom - 76, round(middle + half), bottom - 20), INK, 28)
    pen.text(middle, bottom - 48, said, 22, PAPER, 2 * half - 40, anchor="mm")
