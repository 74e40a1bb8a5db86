"""Carrying out calls on a phone: arguments are checked, and what is wrong is said in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from selfverify.core.episode import Call
from selfverify_phone.system.device import DIRECTIONS, DISTANCES, Phone, Refused
from selfverify_phone.system.glass import HEIGHT, WIDTH

_BOX = ("x1", "y1", "x2", "y2")
_Act = Callable[[Phone, Mapping[str, Any]], None]


def perform(phone: Phone, call: Call) -> None:
    """Carry a call out. Spaces around a text that it has are no part of it.

    Raises:
        Refused: It cannot be; nothing has changed then.
    """
    arguments = {key: v.strip() if isinstance(v, str) else v for key, v in call.arguments.items()}
    name = call.name
    if name not in _TOOLS:
        raise Refused(f"there is no tool {name[:40]!r}; there are {', '.join(_TOOLS)}")
    required, optional, act = _TOOLS[name]
    if name in ("tap", "long_press", "swipe"):
        boxed = any(key in arguments for key in _BOX)
        if boxed or (name != "swipe" and "id" not in arguments and not arguments):
            required = (*_BOX, *(key for key in required if key != "id"))
    if missing := [key for key in required if key not in arguments]:
        raise Refused(f"{name} needs {', '.join(missing)}")
    if extra := sorted(arguments.keys() - {*required, *optional}):
        raise Refused(f"{name} does not take {str(extra[0])[:40]!r}")
    act(phone, arguments)


def _middle(arguments: Mapping[str, Any]) -> tuple[float, float]:
    numbers = [arguments[key] for key in _BOX]
    for key, number in zip(_BOX, numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e6:
            raise Refused(f"{key} must be a number of pixels")
    x, y = (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2
    if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
        raise Refused(f"[{x:g},{y:g}] is not on the screen of {WIDTH}x{HEIGHT}")
    return x, y


def _word(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments[key]
    if not isinstance(value, str):
        raise Refused(f"{key} must be a text")
    return value


def _touch(by_id: Callable[[Phone, str], None], by_place: Callable[[Phone, float, float], None]) -> _Act:
    def act(phone: Phone, arguments: Mapping[str, Any]) -> None:
        if "id" in arguments:
            by_id(phone, _word(arguments, "id"))
        else:
            by_place(phone, *_middle(arguments))

    return act


def _swipe(phone: Phone, arguments: Mapping[str, Any]) -> None:
    if "x1" in arguments:
        _middle(arguments)
    direction, distance = arguments["direction"], arguments.get("dist", "medium")
    if direction not in DIRECTIONS:
        raise Refused(f"direction must be one of {', '.join(DIRECTIONS)}")
    if distance not in DISTANCES:
        raise Refused(f"dist must be one of {', '.join(DISTANCES)}")
    phone.swipe(direction, distance)


def _wait(phone: Phone, arguments: Mapping[str, Any]) -> None:
    seconds = arguments["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 60:
        raise Refused("seconds must be a number from 0 to 60")
    phone.wait()


_TOOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...], _Act]] = {
    "get_current_xml": ((), (), lambda phone, arguments: None),
    "tap": (("id",), (), _touch(Phone.tap, Phone.tap_at)),
    "long_press": (("id",), (), _touch(Phone.hold, Phone.hold_at)),
    "swipe": (("direction",), ("dist",), _swipe),
    "type": (("text_input",), (), lambda phone, arguments: phone.type(_word(arguments, "text_input"))),
    "back": ((), (), lambda phone, arguments: phone.back()),
    "home": ((), (), lambda phone, arguments: phone.home()),
    "enter": ((), (), lambda phone, arguments: phone.enter()),
    "wait": (("seconds",), (), _wait),
    "launch": (("app",), (), lambda phone, arguments: phone.launch(_word(arguments, "app"))),
}
"""Of each tool the arguments that it needs, those that it may have, and what it does."""
