"""Actions on a phone: how a model calls Qwen2.5-VL's `mobile_use` tool, and our canonical form.

An action is a dict with ``action`` and the parameters of that action:

=================  ==========================================================================================
``click``          ``coordinate`` [x, y]
``long_press``     ``coordinate`` [x, y]; ``time`` in seconds is optional
``swipe``          ``coordinate`` and ``coordinate2``, where the finger begins and ends
``type``, ``key``  ``text``
``open``           ``text``, the app's name
``system_button``  ``button``: Back, Home, Menu or Enter
``wait``           ``time`` in seconds is optional
``terminate``      ``status``: success or failure
=================  ==========================================================================================

In data files, targets and results coordinates are pixels of the screen; a model writes them in its own space.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from selfverify.data.gui_actions import ACTIONS, BUTTONS, STATUSES, TIMED, Action
from selfverify.tasks.coordinates import Size, convert
from selfverify.tasks.strict_json import is_number, read_json

TOOL = "mobile_use"
MAX_CHARS = 8192
"""Longer tool calls are malformed."""
MAX_NUMBER = 100_000.0
"""Larger coordinates and times are malformed."""
_PLACES = ("coordinate", "coordinate2")
_KEY_CELL = 0.07
"""Side of a vote's cells in screen diagonals, half of ADPO's tolerance: places in one cell are within it."""


def parse_tool_call(text: str) -> Action | None:
    """Return the action that the inside of ``<tool_call>`` calls for, in the model's space. Never raises.

    It has to be ``{"name": "mobile_use", "arguments": {...}}`` and nothing else: no other or repeated keys,
    every parameter `mobile_use`'s own and of its type, those that the action needs present and texts not
    empty. Parameters that the action does not use are checked and left out.
    """
    if len(text) > MAX_CHARS:
        return None
    try:
        call = read_json(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"} or call["name"] != TOOL:
        return None
    given = call["arguments"]
    if not isinstance(given, dict) or not all(key in _CHECKS and _CHECKS[key](v) for key, v in given.items()):
        return None
    kind = given.get("action")
    if kind is None or not given.keys() >= set(ACTIONS[kind]):
        return None
    used = ("action", *ACTIONS[kind], *(("time",) if kind in TIMED else ()))
    kept = {key: given[key] for key in used if key in given}
    return {key: [float(v) for v in value] if key in _PLACES else value for key, value in kept.items()}


def _is_point(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_plain, value))


def _is_plain(value: Any) -> bool:
    return is_number(value) and abs(value) <= MAX_NUMBER  # False for NaN


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_CHECKS: dict[str, Any] = {
    "action": lambda value: isinstance(value, str) and value in ACTIONS,
    "coordinate": _is_point,
    "coordinate2": _is_point,
    "text": _is_text,
    "time": lambda value: _is_plain(value) and value >= 0,
    "button": lambda value: isinstance(value, str) and value in BUTTONS,
    "status": lambda value: isinstance(value, str) and value in STATUSES,
}


def moved(action: Action, source: Size, target: Size) -> Action:
    """Return the action with its coordinates converted from a space of one size to a space of another."""
    return action | {key: convert(action[key], source, target) for key in _PLACES if key in action}


def swipe_direction(action: Action) -> str | None:
    """Return where the finger goes by the larger distance (up or down if both are equal); None if nowhere."""
    (x1, y1), (x2, y2) = action["coordinate"], action["coordinate2"]
    dx, dy = x2 - x1, y2 - y1
    if dx == dy == 0:
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def write_call(action: Action) -> str:
    """Return the tool call for an action in the model's space, its coordinates rounded to whole numbers.

    ``<`` is written as JSON's escape, so that no text of an action can look like a tag.
    """
    shown = {key: [round(v) for v in value] if key in _PLACES else value for key, value in action.items()}
    call = json.dumps({"name": TOOL, "arguments": shown}, ensure_ascii=False)
    return call.replace("<", "\\u003c")


def vote_key(action: Action, screen: Size) -> str:
    """Return a key that is equal for actions that count as the same answer in a majority vote.

    Places are compared by square cells of 0.07 screen diagonals, counted from the top left: two in one cell
    are less than 0.1 diagonals apart, within ADPO's tolerance of 0.14. Neighbours across a cell's edge count
    as different. Swipes are the same by direction, texts regardless of case and spacing; times say nothing.
    """
    name = action["action"]
    said: Sequence[Any] = ()
    if name == "swipe":
        said = [swipe_direction(action)]
    elif "coordinate" in action:
        cell = _KEY_CELL * math.hypot(*screen)
        said = [math.floor(value / cell) for value in action["coordinate"]]
    elif "text" in action:
        said = [" ".join(action["text"].casefold().split())]
    else:
        said = [action[key] for key in ("button", "status") if key in action]
    return json.dumps([name, *said])
