"""Screens in words, and the calls that refer to them."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.agents.tools import (
    Box,
    LaunchApp,
    Look,
    PressKey,
    ScreenTools,
    Swipe,
    Tap,
    TypeText,
    WaitFor,
    name_elements,
    quoted,
)
from selfverify.core.episode import Call
from selfverify.tasks.tool_calls import ToolError
from tables import yaml_cases

SIZE = (1080, 2400)


@yaml_cases
def test_texts_of_apps_are_quoted(text: str, shown: str) -> None:
    """Nothing in a text ends its line, its quotation or its direction."""
    assert quoted(text) == shown and len(quoted(text).splitlines()) == 1


def test_long_texts_are_cut() -> None:
    """The rest is counted."""
    assert quoted("x" * 402) == '"' + "x" * 400 + '" and 2 more characters'


def test_ids_are_stable_and_differ() -> None:
    """Ids hang on places only; where two hashes are the same, the second one gets another."""
    places = [f"/{i}" for i in range(3000)]
    names = name_elements(places)
    assert names == name_elements(places) and len(set(names)) == 3000
    assert name_elements(["/7", "/9"]) == [names[7], names[9]]
    assert all(name.startswith("n") and len(name) == 5 for name in names)
    many = name_elements(["same"] * 60)
    assert len(set(many)) == 60


def call(name: str, **arguments: Any) -> Call:
    return Call(name, arguments)


def test_calls_are_read() -> None:
    """Every tool, as it was released."""
    tools = ScreenTools()
    for made, action in (
        (call("tap", x1=462, y1=1693, x2=619, y2=1870), Tap(Box(462, 1693, 619, 1870))),
        (call("type", text_input="北京"), TypeText("北京")),
        (call("back"), PressKey("back")),
        (call("wait", seconds=2), WaitFor(2.0)),
        (call("launch", app="Clock"), LaunchApp("Clock")),
        (call("get_current_xml"), Look()),
    ):
        assert tools.read(made, SIZE, {}) == action
    assert Box(462, 1693, 619, 1870).centre == (540, 1781)
    schemas = {s["function"]["name"]: s["function"]["parameters"] for s in tools.schemas}
    names = "tap long_press swipe get_current_xml type back home enter wait launch"
    assert {*schemas} == {*names.split()}
    assert schemas["swipe"]["required"] == ["x1", "y1", "x2", "y2", "direction"]
    assert schemas["swipe"]["properties"]["direction"]["enum"] == ["up", "down", "left", "right"]
    assert schemas["type"]["properties"]["text_input"]["type"] == "string"


@pytest.mark.parametrize(("direction", "distance", "end"), [
    ("up", "short", (540, 984)), ("up", "medium", (540, 768)), ("down", "long", (540, 2398)),
    ("left", "medium", (324, 1200)), ("right", "long", (1078, 1200)),
])  # fmt: skip
def test_swipes_end_on_the_screen(direction: Any, distance: Any, end: tuple[int, int]) -> None:
    """A tenth, two tenths or ten tenths of the width, twice that up and down, as far as the screen goes."""
    assert Swipe(Box(500, 1180, 580, 1220), direction, distance).end(SIZE) == end


def test_elements_are_named_by_option() -> None:
    """An id is one of the last screen; another one is told to the agent."""
    tools = ScreenTools("ids")
    boxes = {"n2181": Box(40, 200, 400, 280)}
    assert tools.read(call("tap", id="n2181"), SIZE, boxes) == Tap(boxes["n2181"])
    with pytest.raises(ToolError, match="no element 'n0000'"):
        tools.read(call("swipe", id="n0000", direction="up", dist="long"), SIZE, boxes)
    with pytest.raises(ToolError, match="do not fit"):
        tools.read(call("tap", x1=1, y1=1, x2=2, y2=2), SIZE, boxes)


@yaml_cases
def test_wrong_calls_are_told(name: str, arguments: dict[str, Any], message: str) -> None:
    """In words for the agent; nothing is converted."""
    given = {key: "x" * 4001 if value == "LONG" else value for key, value in arguments.items()}
    with pytest.raises(ToolError, match=message):
        ScreenTools().read(Call(name, given), SIZE, {})


def test_half_characters() -> None:
    assert quoted("\ud800") == r'"\ud800"'
    with pytest.raises(ToolError, match="do not fit"):
        ScreenTools().read(call("type", text_input="\ud800"), SIZE, {})
