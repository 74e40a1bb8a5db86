"""Tasks about alarms, cities and the timer."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.clock_app import CITIES, DAYS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import Step, hold, launch, tap, write

SHELF = Shelf("clock")
OPEN = launch("clock")


def alarm(world: World, **where: bool | str) -> tuple[str, str]:
    """An alarm's key and time."""
    key = world.pick("alarm", **where)
    return key, str(world.get("alarm", key)["time"])


def new_time(world: World) -> str:
    """A time at which no alarm rings."""
    return world.unlike("alarm", "time", world.time)


def flipped(world: World, on: bool) -> Drawn:
    key, time = alarm(world)
    world.get("alarm", key)["on"] = not on
    return Drawn(
        {"time": time},
        [Has(kind="alarm", match={"time": time}, values={"on": on})],
        [OPEN, tap(f"s{key}")],
    )


@SHELF.operation(
    "Turn on the alarm at {time}.",
    "Switch the {time} alarm on.",
    "Make the alarm at {time} ring.",
)
def turn_on(world: World) -> Drawn:
    return flipped(world, True)


@SHELF.operation(
    "Turn off the alarm at {time}.",
    "Switch the {time} alarm off.",
    "The alarm at {time} must not ring: turn it off.",
)
def turn_off(world: World) -> Drawn:
    return flipped(world, False)


@SHELF.operation(
    "Set an alarm for {time}.",
    "Add an alarm at {time}.",
    "Create a new alarm that rings at {time}.",
    "Wake me at {time}.",
)
def add(world: World) -> Drawn:
    time = new_time(world)
    return Drawn(
        {"time": time},
        [Has(kind="alarm", match={"time": time}, values={"on": True}, new=True)],
        [OPEN, tap("add"), write(time), tap("save")],
    )


@SHELF.operation(
    "Set an alarm for {time} with the label {label}.",
    "Add the alarm {label} at {time}.",
    "Create an alarm at {time} called {label}.",
    hidden=True,
)
def add_label(world: World) -> Drawn:
    time, label, key = new_time(world), world.one(words.LABELS), world.next("alarm")
    return Drawn(
        {"time": time, "label": label},
        [Has(kind="alarm", match={"time": time}, values={"label": label}, new=True)],
        [OPEN, tap("add"), write(time), tap("label"), write(label), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Set an alarm for {time} that rings {days}.",
    "Add an alarm at {time}, repeated: {days}.",
    "Create an alarm at {time} with days {days}.",
    hidden=True,
)
def add_days(world: World) -> Drawn:
    time, days, key = new_time(world), world.one(DAYS, "Once"), world.next("alarm")
    return Drawn(
        {"time": time, "days": days},
        [Has(kind="alarm", match={"time": time}, values={"days": days}, new=True)],
        [OPEN, tap("add"), write(time), tap("days"), tap(days.casefold()), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Move the {time} alarm to {new}.",
    "Change the alarm at {time} so that it rings at {new}.",
    "The alarm at {time} should ring at {new} instead.",
)
def move(world: World) -> Drawn:
    key, time = alarm(world)
    new = new_time(world)
    return Drawn(
        {"time": time, "new": new},
        [Has(kind="alarm", key=key, values={"time": new})],
        [OPEN, tap(f"r{key}"), tap("time"), write(new), tap("save")],
    )


@SHELF.operation(
    "Change the label of the {time} alarm to {label}.",
    "Call the alarm at {time} {label}.",
    "Label the {time} alarm {label}.",
    hidden=True,
)
def label(world: World) -> Drawn:
    key, time = alarm(world)
    new = world.unlike("alarm", "label", lambda: world.one(words.LABELS))
    return Drawn(
        {"time": time, "label": new},
        [Has(kind="alarm", match={"time": time}, values={"label": new})],
        [OPEN, tap(f"r{key}"), tap("label"), write(new), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Let the {time} alarm ring {days}.",
    "Change the days of the {time} alarm to {days}.",
    "Set the alarm at {time} to {days}.",
    hidden=True,
)
def days(world: World) -> Drawn:
    key, time = alarm(world)
    new = world.one(DAYS, str(world.get("alarm", key)["days"]))
    return Drawn(
        {"time": time, "days": new},
        [Has(kind="alarm", match={"time": time}, values={"days": new})],
        [OPEN, tap(f"r{key}"), tap("days"), tap(new.casefold()), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Turn vibrate {state} for the {time} alarm.",
    "Switch vibrate {state} in the alarm at {time}.",
    "The alarm at {time}: vibrate {state}.",
    hidden=True,
    held_out=True,
)
def vibrate(world: World) -> Drawn:
    key, time = alarm(world)
    new = not world.get("alarm", key)["vibrate"]
    return Drawn(
        {"time": time, "state": "on" if new else "off"},
        [Has(kind="alarm", match={"time": time}, values={"vibrate": new})],
        [OPEN, tap(f"r{key}"), tap("vibrate"), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Delete the alarm at {time}.",
    "Remove the {time} alarm.",
    "I do not need the alarm at {time} any more: delete it.",
)
def delete(world: World) -> Drawn:
    key, time = alarm(world)
    return Drawn(
        {"time": time},
        [Absent(kind="alarm", key=key, match={"time": time})],
        [OPEN, hold(f"r{key}"), tap("delete")],
    )


@SHELF.operation(
    "Turn off all alarms.",
    "Switch every alarm off.",
    "No alarm may ring: turn all of them off.",
    held_out=True,
)
def turn_all_off(world: World) -> Drawn:
    for key in list(world.data["alarm"])[4:]:
        del world.data["alarm"][key]
    first = world.pick("alarm")
    world.get("alarm", first)["on"] = True
    on = [key for key, record in world.data["alarm"].items() if record["on"]]
    return Drawn(
        {},
        [Absent(kind="alarm", match={"on": True})],
        [OPEN, *(tap(f"s{key}") for key in on)],
    )


def timer_minutes(world: World) -> int:
    """Minutes that the timer does not stand at."""
    return world.one(range(2, 60), int(world.get("timer", "main")["minutes"]))


def start(minutes: int) -> list[Step]:
    return [tap("minutes"), write(str(minutes)), tap("start")]


@SHELF.operation(
    "Start a timer of {minutes} minutes.",
    "Set the timer to {minutes} minutes and start it.",
    "Let a timer run for {minutes} minutes.",
)
def timer(world: World) -> Drawn:
    minutes = timer_minutes(world)
    return Drawn(
        {"minutes": str(minutes)},
        [Has(kind="timer", key="main", values={"minutes": minutes, "on": True})],
        [OPEN, tap("timer"), *start(minutes)],
    )


@SHELF.operation(
    "Add {city} to the cities of the clock.",
    "Show the time of {city} in my clock.",
    "Put the city {city} into the clock.",
)
def city(world: World) -> Drawn:
    have = [str(record["name"]) for record in world.data["city"].values()]
    name = world.one(list(CITIES), *have)
    return Drawn(
        {"city": name},
        [Has(kind="city", match={"name": name}, new=True)],
        [OPEN, tap("cities"), tap("add"), tap(name.casefold())],
    )
