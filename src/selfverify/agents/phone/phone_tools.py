"""The calls that the phone understands: those of the paper (SmartSnap, figures 10 and 11) and `launch`.

Handing in (`submit`) is not the phone's business.
"""

from __future__ import annotations

from typing import Any, Literal

from selfverify.agents.phone.system.device import DIRECTIONS, DISTANCES

Address = Literal["ids", "bounds"]
_INTEGER = {"type": "integer"}
_BOX = dict.fromkeys(("x1", "y1", "x2", "y2"), _INTEGER)
_ID = {"id": {"type": "string", "description": "The element's id on the screen."}}


def schemas(address: Address, apps: list[str]) -> list[dict[str, Any]]:
    """The tools in OpenAI's form.

    Args:
        address: How what is touched is named: by its ``id``, or by its bounds, whose middle is touched.
        apps: What can be launched.
    """
    place = _ID if address == "ids" else _BOX
    thing = "an element" if address == "ids" else "the middle of the box from (x1, y1) to (x2, y2)"
    swipe: dict[str, Any] = {
        "direction": {"type": "string", "enum": list(DIRECTIONS), "description": "up shows what is below."},
        "dist": {"type": "string", "enum": list(DISTANCES), "description": "medium if it is left out."},
    }
    start = place if address == "bounds" else {}
    return [
        _tool("get_current_xml", "Show the screen; nothing is done.", {}),
        _tool("tap", f"Tap {thing}.", place),
        _tool("long_press", f"Press {thing} for a second.", place),
        _tool("swipe", "Push what is on the screen.", {**start, **swipe}, (*start, "direction")),
        _tool(
            "type",
            "Replace what is in the field that has the focus, then press enter. It needs the keyboard on the "
            "screen.",
            {"text_input": {"type": "string", "description": "The text."}},
        ),
        _tool("back", "Press the back button.", {}),
        _tool("home", "Go to the home screen.", {}),
        _tool("enter", "Press enter on the keyboard, which puts it away.", {}),
        _tool("wait", "Wait.", {"seconds": {"type": "number", "description": "From 0 to 60."}}),
        _tool("launch", "Open an app.", {"app": {"type": "string", "enum": apps}}),
    ]


def _tool(
    name: str, description: str, properties: dict[str, Any], required: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """One schema; all properties are required unless it is said which."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties if required is None else required),
            },
        },
    }
