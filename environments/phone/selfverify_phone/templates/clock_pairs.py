"""Two things to do with alarms, cities and the timer, which need two exhibits."""

from __future__ import annotations

from selfverify.agents.goals import Has
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.clock_tasks import OPEN, alarm, flipped, new_time, start, timer_minutes
from selfverify_phone.templates.ways import tap, write

SHELF = Shelf("clock")


@SHELF.operation(
    "Turn on the alarm at {time} and label the alarm at {other} {label}.",
    "Switch the {time} alarm on; the one at {other} gets the label {label}.",
    "Label the {other} alarm {label}, and turn on the {time} alarm.",
    hidden=True,
    exhibits=2,
)
def turn_on_and_label(world: World) -> Drawn:
    key, time = alarm(world)
    world.get("alarm", key)["on"] = False
    second, other = alarm(world)
    new = world.unlike("alarm", "label", lambda: world.one(words.LABELS))
    return Drawn(
        {"time": time, "other": other, "label": new},
        [
            Has(kind="alarm", match={"time": time}, values={"on": True}),
            Has(kind="alarm", match={"time": other}, values={"label": new}),
        ],
        [OPEN, tap(f"s{key}"), tap(f"r{second}"), tap("label"), write(new), tap("save")],
        [tap(f"r{second}")],
    )


@SHELF.operation(
    "Set an alarm for {time} and start a timer of {minutes} minutes.",
    "Start a {minutes} minute timer and add an alarm at {time}.",
    "I need an alarm at {time} and a running timer of {minutes} minutes.",
    exhibits=2,
)
def add_and_timer(world: World) -> Drawn:
    time, minutes = new_time(world), timer_minutes(world)
    return Drawn(
        {"time": time, "minutes": str(minutes)},
        [
            Has(kind="alarm", match={"time": time}, values={"on": True}, new=True),
            Has(kind="timer", key="main", values={"minutes": minutes, "on": True}),
        ],
        [OPEN, tap("add"), write(time), tap("save"), tap("timer"), *start(minutes)],
    )


@SHELF.operation(
    "Turn on the alarm at {time} and start a timer of {minutes} minutes.",
    "Start a {minutes} minute timer and switch the {time} alarm on.",
    "The alarm at {time} must be on, and a timer of {minutes} minutes must run.",
    exhibits=2,
)
def turn_on_and_timer(world: World) -> Drawn:
    drawn, minutes = flipped(world, True), timer_minutes(world)
    return Drawn(
        {**drawn.says, "minutes": str(minutes)},
        [*drawn.needs, Has(kind="timer", key="main", values={"minutes": minutes, "on": True})],
        [*drawn.solve, tap("timer"), *start(minutes)],
    )
