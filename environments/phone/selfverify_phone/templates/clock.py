"""Tasks and questions about alarms, cities and the timer."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Answer, Has, Listed
from selfverify_phone.apps.clock_app import CITIES, DAYS, EMPTY
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Field, Template, Thing
from selfverify_phone.templates.patterns import add, delete, edit, in_turn, switch
from selfverify_phone.templates.questions import ask, both_on, both_seen, count
from selfverify_phone.templates.ways import BACK, hold, tap, write


def new_time(world: World) -> str:
    """A time at which no alarm rings."""
    return world.unlike("alarm", "time", world.time)


ALARM = Thing("alarm", {"time": "time"})
OTHER = Thing("alarm", {"other": "time"}, again=lambda world, key: [BACK, tap(f"r{key}")])
SWITCH = Thing("alarm", {"time": "time"}, way=lambda world, key: [tap(f"s{key}")])
HELD = Thing("alarm", {"time": "time"}, way=lambda world, key: [hold(f"r{key}")])
CITY = Thing("city", {"city": "name"}, [tap("cities")], lambda world, key: [])
DAYS_FIELD = Field("days", DAYS, chosen=True)
NEW_LABEL = Field(
    "label", draw=lambda world, record: world.unlike("alarm", "label", lambda: world.one(words.LABELS))
)
TURN_ON = switch(SWITCH, "on", True, "")
ADD = add(ALARM, new_time, EMPTY, given={"on": True})


def turn_all_off(world: World) -> Drawn:
    records = world.data["alarm"]
    for key in list(records)[4:]:
        del records[key]
    records[world.pick("alarm")]["on"] = True
    on = [key for key, record in records.items() if record["on"]]
    return Drawn({}, [Absent(kind="alarm", match={"on": True})], [tap(f"s{key}") for key in on])


def timer(world: World) -> Drawn:
    minutes = world.one(range(2, 60), int(world.get("timer", "main")["minutes"]))
    return Drawn(
        {"minutes": str(minutes)},
        [Has(kind="timer", key="main", values={"minutes": minutes, "on": True})],
        [tap("timer"), tap("minutes"), write(str(minutes)), tap("start")],
    )


def city(world: World) -> Drawn:
    have = [str(record["name"]) for record in world.data["city"].values()]
    name = world.one(list(CITIES), *have)
    needs = [Has(kind="city", match={"name": name}, new=True)]
    return Drawn({"city": name}, needs, [tap("cities"), tap("add"), tap(name.casefold())])


def first(world: World) -> Drawn:
    world.get("alarm", world.pick("alarm"))["on"] = True
    time = min(str(record["time"]) for record in world.data["alarm"].values() if record["on"])
    needs = [Listed(kind="alarm", attributes=("time", "on"))]
    return Drawn({}, needs, [], answer=Answer(form="time", value=time))


def which(world: World) -> Drawn:
    key, second = ALARM.drawn(world), OTHER.drawn(world)
    label, time, other = world.get("alarm", key)["label"], ALARM.name(world, key), OTHER.name(world, second)
    one, two = (time, other) if world.flip() else (other, time)
    return Drawn(
        {"label": str(label), "time": one, "other": two},
        [ALARM.shows(world, key, "label"), OTHER.shows(world, second, "label")],
        both_seen(world, ALARM, key, OTHER, second),
        answer=Answer(form="time", value=time),
    )


TASKS: dict[str, Template] = {
    "turn-on": TURN_ON,
    "turn-off": switch(SWITCH, "on", False, ""),
    "add": ADD,
    "add-label": add(ALARM, new_time, EMPTY, Field("label", words.LABELS)),
    "add-days": add(ALARM, new_time, EMPTY, DAYS_FIELD),
    "move": edit(ALARM, Field("time", says="new", draw=lambda world, record: new_time(world)), ""),
    "label": edit(ALARM, NEW_LABEL, "", hidden=True),
    "days": edit(ALARM, DAYS_FIELD, "", hidden=True),
    "vibrate": switch(ALARM, "vibrate", "other", "vibrate", tap("save"), hidden=True).kept_for_tests(),
    "delete": delete(HELD, "delete"),
    "turn-all-off": Template(turn_all_off).kept_for_tests(),
    "timer": Template(timer),
    "city": Template(city),
    "turn-on-and-label": in_turn(TURN_ON, edit(OTHER, NEW_LABEL, "", hidden=True)),
    "add-and-timer": in_turn(ADD, Template(timer)),
    "turn-on-and-timer": in_turn(TURN_ON, Template(timer)),
    "ask-on": count("alarm", "on", True),
    "ask-label": ask(ALARM, "label", "text", words.LABELS),
    "ask-days": ask(ALARM, "days", "text", DAYS).kept_for_tests(),
    "ask-first": Template(first, "query"),
    "ask-which": Template(which, "query", exhibits=2),
    "ask-city": ask(CITY, "hours"),
    "ask-both-vibrate": both_on(ALARM, OTHER, "vibrate"),
}
