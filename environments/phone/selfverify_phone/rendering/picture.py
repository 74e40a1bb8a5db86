"""A screen as a picture, drawn with Pillow in a font that comes with matplotlib, whatever the machine has."""

from __future__ import annotations

from PIL import Image

from selfverify_phone.rendering import style
from selfverify_phone.rendering.pen import FINE, Pen, font
from selfverify_phone.rendering.style import Colour, accent
from selfverify_phone.system import glass
from selfverify_phone.system.glass import Box, Layout
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
        pen.box((0, 0, glass.WIDTH, glass.HEIGHT), style.DIM)
    if look.screen.style in ("page", "home"):
        _page(pen, look, clock)
    else:
        _card(pen, look)
    if look.focus:
        _keyboard(pen)
    if look.toast:
        covered = glass.KEYS if look.focus else glass.TABS if look.screen.tabs else 0
        _toast(pen, look.toast, glass.HEIGHT - covered)
    return pen.image.reduce(FINE)


def _page(pen: Pen, look: Layout, clock: str) -> None:
    colour = accent(look.app)
    if look.screen.style == "home":
        pen.box((0, 0, glass.WIDTH, glass.HEIGHT), colour)
        pen.text(glass.WIDTH / 2, glass.STATUS + 56, clock, 56, style.PAPER, glass.WIDTH, anchor="mm")
    else:
        pen.box((0, 0, glass.WIDTH, glass.STATUS + glass.BAR), colour)
        left = glass.ICON if any(widget.id == "menu" for widget in look.screen.bar) else PAD
        icons = sum(widget.id != "menu" for widget in look.screen.bar) * glass.ICON
        _title(pen, look, left, glass.WIDTH - icons - 8, glass.STATUS + glass.BAR / 2, style.PAPER)
    pen.text(PAD, glass.STATUS / 2 + 2, clock, 17, style.PAPER, 100)
    pen.box((glass.WIDTH - 60, 10, glass.WIDTH - 28, 25), style.PAPER, 3)
    pen.box((glass.WIDTH - 27, 14, glass.WIDTH - 24, 21), style.PAPER, 1)
    for widget, box in look.placed:
        _widget(pen, look, widget, box, colour)
    _scroll_bar(pen, look)


def _title(pen: Pen, look: Layout, left: float, right: float, y: float, fill: Colour) -> None:
    screen = look.screen
    counted = "" if screen.count is None else f"  ({screen.count})"
    pen.text(left, y, f"{screen.title}{counted}", 28, fill, right - left - 8, bold=True)


def _card(pen: Pen, look: Layout) -> None:
    x1, y1, x2, _ = look.frame
    pen.box(look.frame, style.CARD, 28 if look.screen.style == "dialog" else 0)
    colour = accent(look.app)
    if look.screen.style == "drawer":
        pen.box((x1, y1, x2, y1 + glass.BAR), colour)
        _title(pen, look, x1 + PAD, x2, y1 + glass.BAR / 2, style.PAPER)
    else:
        _title(pen, look, x1 + PAD, x2 - PAD, y1 + glass.LINE / 2 + 4, style.INK)
    for widget, box in look.placed:
        _widget(pen, look, widget, box, colour)
    _scroll_bar(pen, look)


def _widget(pen: Pen, look: Layout, widget: Widget, box: Box, colour: Colour) -> None:
    x1, y1, x2, y2 = box
    middle = (y1 + y2) / 2
    left, room = x1 + PAD, x2 - x1 - 2 * PAD
    plain = look.screen.style == "page"
    if widget.role in ("row", "field", "text", "option", "switch") and widget.text + widget.value and plain:
        pen.box(box, style.CARD)
        pen.box((x1 + PAD, y2 - 1, x2, y2), style.LINES)
    match widget.role:
        case "icon":
            faded = tuple((2 * c + p) // 3 for c, p in zip(colour, style.PAPER, strict=True))
            ink = style.PAPER if widget.enabled else faded
            if widget is look.screen.floating:
                x, radius = (x1 + x2) / 2, (x2 - x1) / 2
                pen.disc(x, middle + 4, radius, style.LINES)
                pen.disc(x, middle, radius, colour)
            pen.icon(widget.id, widget.on, (x1 + x2) / 2, middle, 34, ink)  # type: ignore[arg-type]
        case "app":
            x, y = (x1 + x2) / 2, y1 + 66
            pen.box((round(x) - 50, y - 50, round(x) + 50, y + 50), accent(widget.id), 26)
            pen.icon(widget.id, None, x, y, 54, style.PAPER)
            pen.text(x, y1 + 142, widget.text, 20, style.PAPER, x2 - x1, anchor="mm")
        case "tab":
            pen.box(box, style.CARD)
            pen.box((x1, y1, x2, y1 + 1), style.LINES)
            if widget.on:
                pen.box((x1 + 24, y1, x2 - 24, y1 + 5), colour, 2)
            ink, bold = colour if widget.on else style.QUIET, bool(widget.on)
            pen.text((x1 + x2) / 2, middle, widget.text, 22, ink, x2 - x1 - 8, bold=bold, anchor="mm")
        case "switch":
            pen.text(left, middle, widget.text, 25, style.INK, room - 90)
            _knob(pen, x2 - PAD - 60, middle, bool(widget.on), colour)
        case "option":
            pen.disc(left + 14, middle, 15, colour if widget.on else style.QUIET)
            pen.disc(left + 14, middle, 12, style.CARD)
            if widget.on:
                pen.disc(left + 14, middle, 8, colour)
            pen.text(left + 50, middle, widget.text, 25, style.INK, room - 50)
        case "button":
            fill = colour if widget.enabled else style.FADED
            pen.box((x1 + PAD, round(middle) - 32, x2 - PAD, round(middle) + 32), fill, 32)
            pen.text((x1 + x2) / 2, middle, widget.text, 25, style.PAPER, room, bold=True, anchor="mm")
        case "field":
            focused = widget.id == look.focus
            ink, y = colour if focused else style.QUIET, round(middle)
            pen.text(left, middle - 26, widget.text, 19, ink, room)
            pen.text(left, middle + 10, widget.value + ("|" if focused else ""), 25, style.INK, room)
            pen.box((x1 + PAD, y + 34, x2 - PAD, y + (37 if focused else 35)), ink)
        case _:
            _lines(pen, widget, box)


def _lines(pen: Pen, widget: Widget, box: Box) -> None:
    """A row or a text: its label and, below it, its value; a text of several rows is wrapped."""
    x1, y1, x2, y2 = box
    room = x2 - x1 - 2 * PAD - (110 if widget.part else 0)
    middle, left = (y1 + y2) / 2, x1 + PAD
    if widget.span > 1:
        for i, said in enumerate(_wrapped(widget.value, room)):
            pen.text(left, y1 + 40 + 36 * i, said, 24, style.INK, room)
    elif not widget.value:
        pen.text(left, middle, widget.text, 25, style.INK, room)
    elif y2 - y1 <= glass.LINE:
        pen.text(left, middle, widget.text, 25, style.INK, room * 0.55)
        pen.text(x2 - PAD, middle, widget.value, 22, style.QUIET, room * 0.4, anchor="rm")
    elif widget.role == "row":
        pen.text(left, middle - 20, widget.text, 25, style.INK, room)
        pen.text(left, middle + 20, widget.value, 21, style.QUIET, room)
    else:
        pen.text(left, middle - 20, widget.text, 20, style.QUIET, room)
        pen.text(left, middle + 20, widget.value, 25, style.INK, room)


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
    pen.box((x, y - 16, x + 60, y + 16), colour if on else style.FADED, 16)
    pen.disc(x + (44 if on else 16), y, 12, style.PAPER)


def _scroll_bar(pen: Pen, look: Layout) -> None:
    if not look.end:
        return
    _, y1, x2, y2 = look.frame
    top = y1 + (glass.BAR if look.screen.style == "page" else glass.LINE)
    bottom = min([y2, *(box[1] for widget, box in look.placed if widget.role == "tab")])
    if look.focus:
        bottom = min(bottom, glass.HEIGHT - glass.KEYS)
    whole = bottom - top
    size = max(whole * look.room // (look.room + look.end), 40)
    y = top + (whole - size) * look.scroll // look.end
    pen.box((x2 - 8, y, x2 - 3, y + size), style.QUIET, 2)


def _keyboard(pen: Pen) -> None:
    top = glass.HEIGHT - glass.KEYS
    pen.box((0, top, glass.WIDTH, glass.HEIGHT), style.KEYBOARD)
    for i, keys in enumerate(style.ROWS_OF_KEYS):
        width = 48
        x = (glass.WIDTH - (width + 5) * len(keys)) // 2
        for key in keys:
            y = top + 12 + 78 * i
            pen.box((x, y, x + width, y + 66), style.KEY, 8)
            pen.text(x + width / 2, y + 33, key, 24, style.INK, width, anchor="mm")
            x += width + 5
    y = top + 12 + 78 * 3
    pen.box((120, y, 400, y + 66), style.KEY, 8)
    pen.box((410, y, 530, y + 66), style.QUIET, 8)
    pen.text(470, y + 33, "enter", 22, style.PAPER, 110, anchor="mm")


def _toast(pen: Pen, said: str, bottom: int) -> None:
    half = min(font(22).getlength(said) / FINE / 2 + 30, glass.WIDTH / 2 - 20)
    middle = glass.WIDTH // 2
    pen.box((round(middle - half), bottom - 76, round(middle + half), bottom - 20), style.INK, 28)
    pen.text(middle, bottom - 48, said, 22, style.PAPER, 2 * half - 40, anchor="mm")
