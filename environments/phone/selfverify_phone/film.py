"""A session as pictures: it is played again, and what each call touches is marked on the screen before it."""

from __future__ import annotations

from collections.abc import Iterable

from PIL.Image import Image

from selfverify.core.episode import Call
from selfverify.tasks.base import Frame, Mark
from selfverify_phone.playing import perform
from selfverify_phone.rendering.picture import picture
from selfverify_phone.system.device import Phone, Refused

_WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_PIXELS = {"short": 110, "medium": 200, "long": 320}
_SIDES = ("x1", "y1", "x2", "y2")


def film(phone: Phone, calls: Iterable[Call]) -> list[Frame]:
    """The screen at the beginning and after each call; a refused call leaves it as it is.

    Args:
        phone: At the session's beginning. It is changed in place.
        calls: As the agent has made them; nothing of them is trusted.
    """
    frames = []
    for call in calls:
        frames.append(Frame(_drawn(phone), _mark(phone, call)))
        try:
            perform(phone, call)
        except Refused:
            continue
    return [*frames, Frame(_drawn(phone), None)]


def _drawn(phone: Phone) -> Image:
    return picture(phone.look(), phone.beneath(), phone.state["clock"])


def _mark(phone: Phone, call: Call) -> Mark | None:
    look, arguments = phone.look(), call.arguments
    if call.name not in ("tap", "long_press", "swipe"):
        return None
    box = tuple(arguments[side] for side in _SIDES if type(arguments.get(side)) in (int, float))
    if len(box) == len(_SIDES) and all(abs(side) < 1e6 for side in box):
        x, y = int(box[0] + box[2]) // 2, int(box[1] + box[3]) // 2
        under = look.at(x, y)
    else:
        name = arguments.get("id")
        under = look.find(name) if isinstance(name, str) and name else None
        if under is None and call.name != "swipe":
            return None
        x1, y1, x2, y2 = look.frame if under is None else under[1]
        if under is not None and under[0].part is not None:
            # A row with a switch is touched left of it.
            part = look.find(under[0].part.id)
            x2 = part[1][0] if part is not None else x2
        x, y = (x1 + x2) // 2, (y1 + y2) // 2
    if call.name != "swipe":
        return Mark("tap" if call.name == "tap" else "long_press", x, y, None if under is None else under[1])
    way = _WAYS.get(str(arguments.get("direction")))
    if way is None:
        return None
    length = _PIXELS.get(str(arguments.get("dist", "medium")), _PIXELS["medium"])
    start = (x - way[0] * length // 2, y - way[1] * length // 2)
    return Mark("swipe", *start, to=(x + way[0] * length // 2, y + way[1] * length // 2))
