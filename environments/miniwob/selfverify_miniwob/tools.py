"""The tools with which an agent uses a page, and what their calls ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from selfverify.agents.tools import (
    LONGEST_TEXT,
    LONGEST_WAIT,
    Address,
    Box,
    Direction,
    ElementId,
    Look,
    WaitFor,
)
from selfverify.core.episode import Call
from selfverify.tasks.tool_calls import Tool, ToolError, chosen_tool, short_name

KEYS = (
    r"^((Control|Shift|Alt)\+){0,2}(Enter|Tab|Backspace|Delete|Escape|Space|Home|End|PageUp|PageDown|"
    r"Arrow(Up|Down|Left|Right)|[a-zA-Z0-9])$"
)
"""What can be pressed."""

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Click:
    """Click a place."""

    at: Point


@dataclass(frozen=True, slots=True)
class Drag:
    """Move something, or mark a text."""

    start: Point
    end: Point


@dataclass(frozen=True, slots=True)
class TypeKeys:
    """Type at the cursor."""

    text: str


@dataclass(frozen=True, slots=True)
class PressKeys:
    """Press a key or a combination."""

    keys: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel over a place."""

    at: Point
    direction: Direction


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose an option of a list at a place."""

    at: Point
    option: str


BrowserAction = Look | Click | Drag | TypeKeys | PressKeys | Scroll | Choose | WaitFor

X = Annotated[int, Field(description="Pixels from the left edge.")]
Y = Annotated[int, Field(description="Pixels from the upper edge.")]
Towards = Annotated[Direction, Field(description="Where to: down shows what is further below.")]
Option = Annotated[str, Field(description="The option's text.", max_length=LONGEST_TEXT)]


class _OfPages:
    """Tools that are the same however places are named."""

    def look(self) -> Look:
        """Show the page as it is now; nothing is done."""
        return Look()

    def drag(self, x1: X, y1: Y, x2: X, y2: Y) -> Drag:
        """Press the mouse's button at one place and let it go at another: moves things, marks text."""
        return Drag((x1, y1), (x2, y2))

    def type(self, text: Annotated[str, Field(description="The text.", max_length=LONGEST_TEXT)]) -> TypeKeys:
        """Type a text at the cursor; click a field first."""
        return TypeKeys(text)

    def press(
        self,
        keys: Annotated[
            str, Field(description="A key, such as Enter, Tab, ArrowDown or Control+a.", pattern=KEYS)
        ],
    ) -> PressKeys:
        """Press a key or a combination of keys."""
        return PressKeys(keys)

    def wait(
        self, seconds: Annotated[float, Field(description="How long.", ge=0, le=LONGEST_WAIT)]
    ) -> WaitFor:
        """Let time pass."""
        return WaitFor(seconds)


class _ByPoint:
    """Tools that name a place by coordinates."""

    def click(self, x: X, y: Y) -> Click:
        """Click a place."""
        return Click((x, y))

    def scroll(self, x: X, y: Y, direction: Towards) -> Scroll:
        """Scroll what is at a place."""
        return Scroll((x, y), direction)

    def select(self, x: X, y: Y, option: Option) -> Choose:
        """Choose an option of the drop-down list at a place."""
        return Choose((x, y), option)


class _ByName:
    """Tools that name a place by an element's id."""

    def __init__(self, boxes: Mapping[str, Box]) -> None:
        self.boxes = boxes

    def click(self, id: ElementId) -> Click:
        """Click the middle of an element."""
        return Click(self._middle(id))

    def scroll(self, id: ElementId, direction: Towards) -> Scroll:
        """Scroll an element."""
        return Scroll(self._middle(id), direction)

    def select(self, id: ElementId, option: Option) -> Choose:
        """Choose an option of a drop-down list."""
        return Choose(self._middle(id), option)

    def _middle(self, id: str) -> Point:
        if (box := self.boxes.get(id)) is None:
            raise ToolError(f"the last page shown has no element {short_name(id)}")
        return box.centre


_PLAIN = {name: Tool(vars(_OfPages)[name]) for name in ("look", "drag", "type", "press", "wait")}
_PLACED: dict[Address, dict[str, Tool]] = {
    "bounds": {name: Tool(vars(_ByPoint)[name]) for name in ("click", "scroll", "select")},
    "ids": {name: Tool(vars(_ByName)[name]) for name in ("click", "scroll", "select")},
}


class BrowserTools:
    """The tools of one session.

    Args:
        address: How `click`, `scroll` and `select` name a place: by coordinates, or by an element's id.
    """

    def __init__(self, address: Address) -> None:
        self._tools = {**_PLACED[address], **_PLAIN}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as they stand in `Problem.tools`."""
        return [tool.schema for tool in self._tools.values()]

    def read(self, call: Call, size: tuple[int, int], boxes: Mapping[str, Box]) -> BrowserAction:
        """What a call asks for; places are pixels of the screenshot.

        Raises:
            ToolError: There is no such tool, or its arguments do not fit; in words for the agent.
        """
        tool, arguments = chosen_tool(self._tools, call.name, call.arguments)
        action: BrowserAction = tool.function(_ByName(boxes), **arguments)
        match action:
            case Click(at) | Scroll(at, _) | Choose(at, _):
                _check(at, size)
            case Drag(start, end):
                _check(start, size)
                _check(end, size)
        return action


def _check(at: Point, size: tuple[int, int]) -> None:
    if not (0 <= at[0] < size[0] and 0 <= at[1] < size[1]):
        raise ToolError(f"the place {at} is outside the page of {size[0]} x {size[1]} pixels")
