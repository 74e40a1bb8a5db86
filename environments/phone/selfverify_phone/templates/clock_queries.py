"""Questions about alarms, cities and the timer."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.apps.clock_app import DAYS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.clock_tasks import OPEN, alarm
from selfverify_phone.templates.ways import BACK, tap

SHELF = Shelf("clock")


@SHELF.query(
    "How many alarms are on?",
    "How many alarms will ring?",
    "Count the alarms that are turned on.",
)
def ask_on(world: World) -> Drawn:
    number = sum(bool(record["on"]) for record in world.data["alarm"].values())
    return Drawn(
        {},
        [Listed(kind="alarm", match={"on": True})],
        [OPEN],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "What is the label of the {time} alarm?",
    "How is the alarm at {time} labelled?",
    "Tell me the label of the alarm at {time}.",
)
def ask_label(world: World) -> Drawn:
    key, time = alarm(world)
    label = str(world.get("alarm", key)["label"])
    others = tuple(word for word in words.LABELS if word != label)
    return Drawn(
        {"time": time},
        [Has(kind="alarm", match={"time": time}, values={"label": label})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(value=label, others=others),
    )


@SHELF.query(
    "On which days does the {time} alarm ring?",
    "What are the days of the alarm at {time}?",
    "How often does the {time} alarm ring?",
    held_out=True,
)
def ask_days(world: World) -> Drawn:
    key, time = alarm(world)
    days = str(world.get("alarm", key)["days"])
    others = tuple(word for word in DAYS if word != days)
    return Drawn(
        {"time": time},
        [Has(kind="alarm", match={"time": time}, values={"days": days})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(value=days, others=others),
    )


@SHELF.query(
    "When does the first alarm that is on ring?",
    "At what time will the earliest alarm ring that is turned on?",
    "Tell me the time of the first alarm that is on.",
)
def ask_first(world: World) -> Drawn:
    world.get("alarm", world.pick("alarm"))["on"] = True
    first = min(str(record["time"]) for record in world.data["alarm"].values() if record["on"])
    return Drawn(
        {},
        [Listed(kind="alarm", attributes=("time", "on"))],
        [OPEN],
        answer=Answer(form="time", value=first),
    )


@SHELF.query(
    "Which alarm has the label {label}, the one at {time} or the one at {other}?",
    "Is {label} the label of the alarm at {time} or at {other}?",
    "{label}: is that the {time} or the {other} alarm?",
    exhibits=2,
)
def ask_which(world: World) -> Drawn:
    key, time = alarm(world)
    second, other = alarm(world)
    label = str(world.get("alarm", key)["label"])
    their = str(world.get("alarm", second)["label"])
    one, two = (time, other) if world.flip() else (other, time)
    return Drawn(
        {"label": label, "time": one, "other": two},
        [
            Has(kind="alarm", match={"time": time}, values={"label": label}),
            Has(kind="alarm", match={"time": other}, values={"label": their}),
        ],
        [OPEN, tap(f"r{key}"), BACK, tap(f"r{second}")],
        answer=Answer(form="time", value=time),
    )


@SHELF.query(
    "How many hours is {city} ahead or behind?",
    "What is the time difference of {city} in hours?",
    "By how many hours does the time in {city} differ?",
)
def ask_city(world: World) -> Drawn:
    key = world.pick("city")
    name, hours = str(world.get("city", key)["name"]), int(world.get("city", key)["hours"])
    return Drawn(
        {"city": name},
        [Has(kind="city", match={"name": name}, values={"hours": hours})],
        [OPEN, tap("cities")],
        answer=Answer(form="number", value=str(abs(hours))),
    )


@SHELF.query(
    "Do the alarms at {time} and {other} both vibrate?",
    "Is vibrate on for the {time} alarm and for the {other} alarm?",
    "The alarms at {time} and {other}: do both of them vibrate?",
    exhibits=2,
)
def ask_both_vibrate(world: World) -> Drawn:
    found, both = [alarm(world) for _ in range(2)], world.flip()
    for key, _ in found:
        world.get("alarm", key)["vibrate"] = True
    if not both:
        world.get("alarm", world.one(found)[0])["vibrate"] = False
    return Drawn(
        {"time": found[0][1], "other": found[1][1]},
        [
            Has(kind="alarm", match={"time": time}, values={"vibrate": world.get("alarm", key)["vibrate"]})
            for key, time in found
        ],
        [OPEN, tap(f"r{found[0][0]}"), BACK, tap(f"r{found[1][0]}")],
        answer=Answer(form="yes-no", value="yes" if both else "no"),
    )
