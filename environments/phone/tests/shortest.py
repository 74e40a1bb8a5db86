"""A breadth-first search over everything that can be done on a phone, to check declared lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator

from selfverify.agents.evidence import Exhibit
from selfverify.core.episode import StepResult
from selfverify_phone.phone_tasks import PhoneTask
from selfverify_phone.system.device import DISTANCES, HOME, Phone
from selfverify_phone.templates.ways import Step


def seen(phone: Phone, round: int = 0) -> Exhibit:
    """What the phone shows now, as an exhibit."""
    return Exhibit(None, StepResult(round, info={"facts": [list(fact) for fact in phone.look().facts]}))


def typed(steps: tuple[Step, ...]) -> set[str]:
    """The texts that an expert types on any way."""
    found = {step.value for step in steps if step.verb == "type"}
    return found.union(*(typed(way) for step in steps for way in step.ways))


def launched(task: PhoneTask) -> set[str]:
    """The apps that an expert opens."""
    return {step.value for step in task.solve if step.verb == "launch"}


def moves(phone: Phone, texts: set[str], apps: set[str]) -> Iterator[tuple[str, ...]]:
    """Everything that could be done now."""
    look = phone.look()
    for widget, _ in look.placed:
        if widget.id and widget.enabled and (widget.tap or widget.write):
            yield ("tap", widget.id)
        if widget.id and widget.enabled and widget.hold:
            yield ("hold", widget.id)
    if look.focus:
        yield from (("type", text) for text in sorted(texts))
    for direction, far in (("up", look.end - look.scroll), ("down", look.scroll)):
        if far:
            yield from (("swipe", direction, distance) for distance in DISTANCES)
    yield from (("swipe", direction) for direction in look.screen.swipes)
    if len(phone.stack) > 1:
        yield ("back",)
    else:
        yield from (("launch", app) for app in sorted(apps))


def alone(phone: Phone, apps: set[str]) -> Phone:
    """The phone with these apps only, so that it is quick to copy."""
    kept = {name: app for name, app in phone.apps.items() if name in apps | {HOME}}
    kinds = {kind for app in kept.values() for kind in app.kinds}
    state = {**phone.state, "data": {k: r for k, r in phone.data.items() if k in kinds}}
    return Phone(state, kept)


def done(task: PhoneTask, phone: Phone) -> bool:
    """Whether the goal is reached; of a query with one exhibit, whether the answer is to be seen."""
    if task.goal.kind == "query":
        return task.goal.shown([seen(phone)], task.message).verdict is True
    return task.goal.on_state(phone.facts()).complete


def reached(task: PhoneTask, most: int, states: int = 40_000) -> int | None:
    """The fewest calls to the goal, up to ``most``; None where there are none, -1 where too many states."""
    texts, apps = typed(task.solve), launched(task)
    start = alone(task.phone(), apps)
    if done(task, start):
        return 0
    known = {_key(start)}
    level = [start]
    for length in range(1, most + 1):
        further: list[Phone] = []
        for phone in level:
            for move in moves(phone, texts, apps):
                after = phone.copy()
                Phone.__dict__[move[0]](after, *move[1:])
                key = _key(after)
                if key in known:
                    continue
                if done(task, after):
                    return length
                known.add(key)
                if len(known) > states:
                    return -1
                after.state["toast"] = ""
                further.append(after)
        level = further
    return None


def _key(phone: Phone) -> str:
    phone.look()
    stack = [{**frame, "reveal": ""} for frame in phone.stack]
    return json.dumps([phone.data, stack, phone.state["popup"]])
