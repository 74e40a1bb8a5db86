"""The tools with which an agent uses a phone, and the phone's screen in words."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from selfverify.core.episode import Call
from selfverify.tasks.tool_calls import Tool, ToolError, chosen_tool, short_name

LONGEST_LABEL = 400
"""Characters of an element's text that are shown."""
MOST_INDENTED = 20
"""How many elements around one its line's beginning shows."""

_JOINERS = "\u200c\u200d"
"""Invisible characters that scripts and emoji need."""


class Box(NamedTuple):
    """A rectangle in pixels of the screen; right and bottom lie outside of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel in its middle."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2

    def cut(self, other: Box) -> Box | None:
        """The part that both have in common; None where there is none."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Box(left, top, right, bottom) if left < right and top < bottom else None


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a screen.

    Args:
        id: Names it on its screen; `name_elements` makes ids.
        kind: Its kind, such as ``Switch``; empty for what only groups others.
        box: Where it is.
        actions: Its actions, such as ``click``.
        states: How it is, such as ``checked``.
        texts: Its words: its text, and its description where that says something else.
        depth: How many of the screen's other elements it stands in.
    """

    id: str
    kind: str
    box: Box
    actions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Screen:
    """The screen at one moment.

    Args:
        app: The app of the screen, such as a package's name.
        size: Width and height in pixels, as it is held now.
        elements: From top to bottom, as the app orders them; those inside an element follow it.
    """

    app: str
    size: tuple[int, int]
    elements: Sequence[Element] = ()

    @property
    def boxes(self) -> dict[str, Box]:
        """Where each element is, by id."""
        return {element.id: element.box for element in self.elements}


def describe(screen: Screen) -> str:
    """The screen in words. Equal screens have equal texts.

    Each element has a line, with an id, what it is, what can be done with it, and where it is. That is what
    AndroidLab's compressed XML says. Two things differ. An element keeps its id as long as it stands at its
    place. And what an app shows is quoted, and invisible characters in it are escaped, so that no text of an
    app can pass for another line, element or heading.
    """
    width, height = screen.size
    lines = [f"App {quoted(screen.app)}, screen {width} x {height}"]
    lines += [_line(element) for element in screen.elements]
    return "\n".join(lines if screen.elements else [*lines, "(nothing to be read or used)"])


def quoted(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text of an app on one line, in quotation marks that nothing in it can close."""
    body = "".join(_visible(c) for c in json.dumps(text[:longest], ensure_ascii=False))
    return body if len(text) <= longest else f"{body} and {len(text) - longest} more characters"


def name_elements(places: Iterator[str] | Sequence[str]) -> list[str]:
    """Ids for elements, in their order: ``n`` and four hexadecimal digits of a hash of each one's place.

    Args:
        places: A text for each element that tells it from the others and stays the same, such as its path in
            the hierarchy.
    """
    taken: set[str] = set()
    names = []
    for place in places:
        tried = (_name(place, attempt) for attempt in itertools.count())
        name = next(one for one in tried if one not in taken)
        taken.add(name)
        names.append(name)
    return names


def _name(place: str, attempt: int) -> str:
    whole = f"{attempt}:{place}".encode("utf-8", "replace")
    return "n" + hashlib.blake2b(whole, digest_size=2 if attempt < 50 else 8).hexdigest()


def _line(element: Element) -> str:
    traits = "; ".join(", ".join(part) for part in (element.actions, element.states) if part)
    left, top, right, bottom = element.box
    parts = [f"[{element.id}]", element.kind, f"({traits})" if traits else "", *map(quoted, element.texts)]
    place = f"[{left},{top}][{right},{bottom}]"
    return "    " * min(element.depth, MOST_INDENTED) + " ".join(part for part in (*parts, place) if part)


def _visible(character: str) -> str:
    """A character as it is, or escaped where it shows nothing or turns the line around."""
    if character == " " or character in _JOINERS or character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


Direction = Literal["up", "down", "left", "right"]
Distance = Literal["short", "medium", "long"]
Address = Literal["bounds", "ids"]
"""How calls name a place: by four coordinates (as released), or by an element's id on the last screen."""

LONGEST_WAIT = 60.0
"""Seconds that one call may wait."""
LONGEST_TEXT = 4_000
"""Characters that one call may type."""


@dataclass(frozen=True, slots=True)
class Look:
    """Show the screen."""


@dataclass(frozen=True, slots=True)
class Tap:
    """Tap the middle of a box."""

    box: Box


@dataclass(frozen=True, slots=True)
class LongPress:
    """Hold the middle of a box."""

    box: Box


@dataclass(frozen=True, slots=True)
class Swipe:
    """Move the finger from the middle of a box."""

    box: Box
    direction: Direction
    distance: Distance

    def end(self, size: tuple[int, int]) -> tuple[int, int]:
        """Where the finger leaves the screen: within ``size``, in pixels.

        A tenth of the width is short, two tenths are medium, ten are long, and twice that up or down, as in
        AndroidLab.
        """
        x, y = self.box.centre
        unit = size[0] // 10 * {"short": 1, "medium": 2, "long": 10}[self.distance]
        dx, dy = {"up": (0, -2), "down": (0, 2), "left": (-1, 0), "right": (1, 0)}[self.direction]
        return min(max(x + dx * unit, 1), size[0] - 2), min(max(y + dy * unit, 1), size[1] - 2)


@dataclass(frozen=True, slots=True)
class TypeText:
    """Put a text into the field that has the focus, instead of what is in it, and press Enter."""

    text: str


@dataclass(frozen=True, slots=True)
class PressKey:
    """Press a key."""

    key: Literal["back", "home", "enter"]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Do nothing for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchApp:
    """Open an app."""

    app: str


ScreenAction = Look | Tap | LongPress | Swipe | TypeText | PressKey | WaitFor | LaunchApp

X1 = Annotated[int, Field(description="Left edge of the rectangle, in pixels.")]
Y1 = Annotated[int, Field(description="Upper edge of the rectangle, in pixels.")]
X2 = Annotated[int, Field(description="Right edge of the rectangle, in pixels.")]
Y2 = Annotated[int, Field(description="Lower edge of the rectangle, in pixels.")]
ElementId = Annotated[str, Field(description="Id of an element, as the screen shows it.")]
Towards = Annotated[Direction, Field(description="Where the finger moves: up shows what is below.")]
HowFar = Annotated[Distance, Field(description="How far the finger moves; medium if left out.")]


class _Anywhere:
    """Tools that name no place."""

    def get_current_xml(self) -> Look:
        """Describe what the screen shows now; nothing is done."""
        return Look()

    def type(
        self, text_input: Annotated[str, Field(description="The text.", max_length=LONGEST_TEXT)]
    ) -> TypeText:
        """Type a text into the field that has the focus, instead of what is in it, then press Enter. Returns
        the screen afterwards."""
        return TypeText(text_input)

    def back(self) -> PressKey:
        """Press Back. Returns the screen afterwards."""
        return PressKey("back")

    def home(self) -> PressKey:
        """Press Home. Returns the screen afterwards."""
        return PressKey("home")

    def enter(self) -> PressKey:
        """Press Enter. Returns the screen afterwards."""
        return PressKey("enter")

    def wait(
        self, seconds: Annotated[float, Field(description="How long.", ge=0, le=LONGEST_WAIT)]
    ) -> WaitFor:
        """Wait for some seconds. Returns the screen afterwards."""
        return WaitFor(seconds)

    def launch(self, app: Annotated[str, Field(description="The app's name.", max_length=200)]) -> LaunchApp:
        """Open an app. Returns the screen afterwards."""
        return LaunchApp(app)


class _ByBounds:
    """Tools that name a place by a rectangle."""

    def tap(self, x1: X1, y1: Y1, x2: X2, y2: Y2) -> Tap:
        """Tap the middle of a rectangle, such as an element's. Returns the screen afterwards."""
        return Tap(Box(x1, y1, x2, y2))

    def long_press(self, x1: X1, y1: Y1, x2: X2, y2: Y2) -> LongPress:
        """Hold a finger on the middle of a rectangle. Returns the screen afterwards."""
        return LongPress(Box(x1, y1, x2, y2))

    def swipe(self, x1: X1, y1: Y1, x2: X2, y2: Y2, direction: Towards, dist: HowFar = "medium") -> Swipe:
        """Move a finger from the middle of a rectangle. Returns the screen afterwards."""
        return Swipe(Box(x1, y1, x2, y2), direction, dist)


class _ById:
    """Tools that name a place by an element's id."""

    def __init__(self, boxes: Mapping[str, Box]) -> None:
        self.boxes = boxes

    def tap(self, id: ElementId) -> Tap:
        """Tap an element. Returns the screen afterwards."""
        return Tap(self._box(id))

    def long_press(self, id: ElementId) -> LongPress:
        """Hold a finger on an element. Returns the screen afterwards."""
        return LongPress(self._box(id))

    def swipe(self, id: ElementId, direction: Towards, dist: HowFar = "medium") -> Swipe:
        """Move a finger from the middle of an element. Returns the screen afterwards."""
        return Swipe(self._box(id), direction, dist)

    def _box(self, id: str) -> Box:
        if (box := self.boxes.get(id)) is None:
            raise ToolError(f"the last screen shown has no element {short_name(id)}")
        return box


_LOOK = "get_current_xml"
_PLAIN = {
    name: Tool(vars(_Anywhere)[name]) for name in (_LOOK, "type", "back", "home", "enter", "wait", "launch")
}
_PLACED: dict[Address, dict[str, Tool]] = {
    "bounds": {name: Tool(vars(_ByBounds)[name]) for name in ("tap", "long_press", "swipe")},
    "ids": {name: Tool(vars(_ById)[name]) for name in ("tap", "long_press", "swipe")},
}


class ScreenTools:
    """The tools of one session.

    Names and parameters are those of SmartSnap's released code. Rectangles are pixels of the screen, and
    their middle is used; by option an element's id names the place instead. `submit`, by which an agent hands
    in evidence, is none of these: it asks nothing of a phone.

    Args:
        address: How calls name a place.
    """

    def __init__(self, address: Address = "bounds") -> None:
        self._tools = {_LOOK: _PLAIN[_LOOK], **_PLACED[address], **_PLAIN}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as they stand in `Problem.tools`."""
        return [tool.schema for tool in self._tools.values()]

    def read(self, call: Call, size: tuple[int, int], boxes: Mapping[str, Box]) -> ScreenAction:
        """Return the action that a call asks for.

        Args:
            call: As the agent made it.
            size: Width and height of the screen in pixels.
            boxes: The elements of the last screen that the agent was shown, by id.

        Raises:
            ToolError: There is no such tool, or its arguments do not fit; in words for the agent.
        """
        tool, arguments = chosen_tool(self._tools, call.name, call.arguments)
        action: ScreenAction = tool.function(_ById(boxes), **arguments)
        if isinstance(action, Tap | LongPress | Swipe):
            _check_place(action.box, size)
        if isinstance(action, TypeText) and "\0" in action.text:
            raise ToolError("the text holds a character that cannot be typed (NUL)")
        return action


def _check_place(box: Box, size: tuple[int, int]) -> None:
    """See that the middle of a box can be touched."""
    if box.right < box.left or box.bottom < box.top:
        raise ToolError(f"the rectangle {tuple(box)} must have x1 <= x2 and y1 <= y2")
    (x, y), (width, height) = box.centre, size
    if not (0 <= x < width and 0 <= y < height):
        where = f"outside the screen of {width} x {height} pixels"
        raise ToolError(f"the middle ({x}, {y}) of the rectangle is {where}")
