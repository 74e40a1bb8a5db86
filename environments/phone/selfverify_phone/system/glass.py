"""Where everything stands on the glass, and what of it is to be seen."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.agents.facts import Fact
from selfverify_phone.system.widgets import View, Widget

WIDTH, HEIGHT = 540, 960
"""The glass in pixels."""
STATUS, BAR, ROW, LINE, TABS, KEYS = 32, 88, 132, 88, 88, 324
"""Heights: status line, heading, a row of a page, a row of a dialog or drawer, tabs, keyboard."""
ICON, FLOATING, SWITCH = 72, 92, 108
"""Widths: an icon of the bar, the floating button, a switch in a row."""
DIALOG = (36, WIDTH - 36)
DRAWER = (0, 400)
CELL = 180
"""The side of an app's cell on the home screen."""

Box = tuple[int, int, int, int]


@dataclass(slots=True)
class Layout:
    """A screen on the glass.

    Args:
        app: The app that shows it.
        screen: What is shown.
        placed: The widgets to be seen, each with its box (x1, y1, x2, y2), from the bottom up.
        frame: The box of the page, dialog or drawer.
        scroll: How many widgets of the body are above what is seen.
        room: How many rows the body has room for.
        end: The largest ``scroll``.
        focus: The field that is typed into; empty where no keyboard shows.
        toast: A short message at the lower edge.
    """

    app: str
    screen: View
    placed: list[tuple[Widget, Box]]
    frame: Box
    scroll: int
    room: int
    end: int
    focus: str = ""
    toast: str = ""

    @property
    def facts(self) -> list[Fact]:
        """What is really to be seen."""
        found = list(self.screen.facts)
        for widget, _ in self.placed:
            found += widget.facts
        return found

    def find(self, id: str) -> tuple[Widget, Box] | None:
        """The widget with this id, if it is to be seen."""
        for widget, box in self.placed:
            if widget.id == id:
                return widget, box
        return None

    def at(self, x: float, y: float) -> tuple[Widget, Box] | None:
        """The uppermost widget at a point."""
        for widget, (x1, y1, x2, y2) in reversed(self.placed):
            if widget.id and x1 <= x < x2 and y1 <= y < y2:
                return widget, (x1, y1, x2, y2)
        return None


def place(app: str, screen: View, scroll: int, reveal: str, focus: str, toast: str) -> Layout:
    """Lay a screen out.

    Args:
        app: The app that shows it.
        screen: What is shown.
        scroll: The wanted number of widgets above what is seen; brought into range.
        reveal: The id of a row that has to be seen; empty where none has to.
        focus: The field that is typed into.
        toast: A short message.
    """
    bottom = HEIGHT - (KEYS if focus else 0)
    body = screen.body
    line = ROW if screen.style == "page" else LINE
    if screen.style == "home":
        return _home(app, screen, toast)
    if screen.style != "dialog":
        left, right = DRAWER if screen.style == "drawer" else (0, WIDTH)
        top, frame = STATUS + BAR, (left, STATUS, right, HEIGHT)
        if screen.tabs and not focus:
            bottom -= TABS
        room = (bottom - top) // line
    else:
        left, right = DIALOG
        most = (bottom - STATUS - LINE) // line - 1
        room = min(max(sum(widget.span for widget in body), 1), most)
        height = LINE + room * line + 24
        y = STATUS + (bottom - STATUS - height) // 2
        frame, top = (left, y, right, y + height), y + LINE
    end = _end(body, room)
    scroll = max(0, min(scroll, end))
    if reveal:
        scroll = _revealing(body, reveal, scroll, room, end)
    placed: list[tuple[Widget, Box]] = []
    y, used = top, 0
    for widget in body[scroll:] if scroll else body:
        used += widget.span
        if used > room:
            break
        below = y + line * widget.span
        placed.append((widget, (left, y, right, below)))
        if widget.part is not None:
            placed.append((widget.part, (right - SWITCH, y, right, below)))
        y = below
    x = WIDTH
    for widget in reversed(screen.bar):
        if widget.id == "menu":
            placed.append((widget, (0, STATUS, ICON, STATUS + BAR)))
        else:
            x -= ICON
            placed.append((widget, (x, STATUS, x + ICON, STATUS + BAR)))
    if screen.tabs and not focus:
        width = WIDTH // len(screen.tabs)
        for i, widget in enumerate(screen.tabs):
            placed.append((widget, (i * width, HEIGHT - TABS, (i + 1) * width, HEIGHT)))
    if screen.floating is not None and not focus:
        x1, y1 = WIDTH - FLOATING - 24, bottom - FLOATING - 24
        placed.append((screen.floating, (x1, y1, x1 + FLOATING, y1 + FLOATING)))
    return Layout(app, screen, placed, frame, scroll, room, end, focus, toast)


def _end(body: list[Widget], room: int) -> int:
    """The largest scroll: from there on, everything is seen."""
    used, first = 0, len(body)
    while first and used + body[first - 1].span <= room:
        first -= 1
        used += body[first].span
    return min(first, max(len(body) - 1, 0))


def _revealing(body: list[Widget], id: str, scroll: int, room: int, end: int) -> int:
    """The scroll nearest to the given one at which a widget is seen."""
    place = next((i for i, widget in enumerate(body) if widget.id == id), None)
    if place is None:
        return scroll
    if place < scroll:
        return min(place, end)
    while scroll < place and sum(widget.span for widget in body[scroll : place + 1]) > room:
        scroll += 1
    return scroll


def _home(app: str, screen: View, toast: str) -> Layout:
    placed: list[tuple[Widget, Box]] = []
    for i, widget in enumerate(screen.body):
        x, y = i % 3 * CELL, STATUS + 120 + i // 3 * (CELL + 20)
        placed.append((widget, (x, y, x + CELL, y + CELL)))
    return Layout(app, screen, placed, (0, 0, WIDTH, HEIGHT), 0, len(screen.body), 0, "", toast)
