"""An expert that carries steps out on a phone, by as few calls as there can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

from selfverify.core.episode import Call
from selfverify_phone.system.device import DISTANCES, Phone
from selfverify_phone.templates.ways import Step

Address = Literal["ids", "bounds"]


class Lost(Exception):
    """A step cannot be carried out: the template and the apps do not fit together."""


def carry_out(phone: Phone, steps: Iterable[Step], address: Address = "ids") -> list[Call]:
    """Carry steps out on the phone.

    Args:
        phone: Changed in place.
        steps: What to do.
        address: How the calls name what is touched: by id, or by bounds.

    Returns:
        The calls, scrolling included, and whatever it takes to close a question that interrupts.

    Raises:
        Lost: A step needs what the phone does not show.
    """
    calls: list[Call] = []
    for step in steps:
        if step.verb == "either":
            calls += carry_out(phone, _shortest(phone, step.ways), address)
        elif step.verb == "launch":
            calls += _uninterrupted(phone, address)
            if (phone.frame["app"], phone.frame["screen"]) != (step.value, "root"):
                phone.launch(step.value)
                calls.append(Call("launch", {"app": step.value}))
        elif step.verb == "type":
            phone.type(step.value)
            calls.append(Call("type", {"text_input": step.value}))
        elif step.verb in ("see", "tap", "long_press"):
            calls += _scroll_to(phone, step.value, address)
            if step.verb != "see":
                calls.append(_touch(phone, step.verb, step.value, address))
        elif step.verb == "swipe":
            phone.swipe(step.value)
            calls.append(_swipe(phone, step.value, "medium", address))
        else:
            phone.back()
            calls.append(Call("back"))
        calls += _uninterrupted(phone, address)
    return calls


def _uninterrupted(phone: Phone, address: Address) -> list[Call]:
    """Close the question by which an app interrupts."""
    return [_touch(phone, "tap", "later", address)] if phone.frame["screen"] == "popup" else []


def _shortest(phone: Phone, ways: Iterable[tuple[Step, ...]]) -> tuple[Step, ...]:
    """The way of the fewest calls from here; a way that leads nowhere is left out."""
    counted: list[tuple[int, tuple[Step, ...]]] = []
    for way in ways:
        try:
            counted.append((len(carry_out(phone.copy(), way)), way))
        except Lost:
            continue
    if not counted:
        raise Lost(f"none of the ways leads on from {phone.frame}")
    return min(counted, key=lambda entry: entry[0])[1]


def _scroll_to(phone: Phone, id: str, address: Address) -> list[Call]:
    """The fewest swipes after which a widget is to be seen."""
    look = phone.look()
    if look.find(id):
        return []
    if all(widget.id != id and (widget.part is None or widget.part.id != id) for widget in look.screen.body):
        raise Lost(f"there is no {id} on {phone.frame}")
    start = look.scroll
    queue: deque[tuple[int, list[tuple[str, str]]]] = deque([(start, [])])
    known = {start}
    while queue:
        scroll, way = queue.popleft()
        for direction in ("up", "down"):
            for distance in DISTANCES[::-1]:
                phone.frame["scroll"] = scroll
                phone.wait()
                phone.swipe(direction, distance)
                now = phone.look()
                if now.find(id):
                    phone.frame["scroll"] = start
                    phone.wait()
                    return [_swiped(phone, *step, address) for step in [*way, (direction, distance)]]
                if now.scroll not in known:
                    known.add(now.scroll)
                    queue.append((now.scroll, [*way, (direction, distance)]))
    raise Lost(f"{id} is never to be seen on {phone.frame}")


def _swiped(phone: Phone, direction: str, distance: str, address: Address) -> Call:
    call = _swipe(phone, direction, distance, address)
    phone.swipe(direction, distance)
    return call


def _swipe(phone: Phone, direction: str, distance: str, address: Address) -> Call:
    arguments: dict[str, Any] = {"direction": direction, "dist": distance}
    if address == "bounds":
        x1, y1, x2, y2 = phone.look().frame
        arguments = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, **arguments}
    return Call("swipe", arguments)


def _touch(phone: Phone, verb: str, id: str, address: Address) -> Call:
    found = phone.look().find(id)
    if found is None:
        raise Lost(f"there is no {id} on {phone.frame}")
    if not found[0].enabled:
        raise Lost(f"{id} is disabled on {phone.frame}")
    x1, y1, x2, y2 = found[1]
    if found[0].part is not None:
        # The middle of what the row leaves to itself.
        x2 = phone.look().find(found[0].part.id)[1][0]  # type: ignore[index]
    act = phone.tap if verb == "tap" else phone.hold
    act(id)
    return Call(verb, {"id": id} if address == "ids" else {"x1": x1, "y1": y1, "x2": x2, "y2": y2})
