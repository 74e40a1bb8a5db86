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
    "turn-on": TURN_ON.asked(
        "Turn on the alarm at {time}.", "Switch the {time} alarm on.", "Make the alarm at {time} ring."
    ),
    "turn-off": switch(SWITCH, "on", False, "").asked(
        "Turn off the alarm at {time}.",
        "Switch the {time} alarm off.",
        "The alarm at {time} must not ring: turn it off.",
    ),
    "add": ADD.asked(
        "Set an alarm for {time}.",
        "Add an alarm at {time}.",
        "Create a new alarm that rings at {time}.",
        "Wake me at {time}.",
    ),
    "add-label": add(ALARM, new_time, EMPTY, Field("label", words.LABELS)).asked(
        "Set an alarm for {time} with the label {label}.",
        "Add the alarm {label} at {time}.",
        "Create an alarm at {time} called {label}.",
    ),
    "add-days": add(ALARM, new_time, EMPTY, DAYS_FIELD).asked(
        "Set an alarm for {time} that rings {days}.",
        "Add an alarm at {time}, repeated: {days}.",
        "Create an alarm at {time} with days {days}.",
    ),
    "move": edit(ALARM, Field("time", says="new", draw=lambda world, record: new_time(world)), "").asked(
        "Move the {time} alarm to {new}.",
        "Change the alarm at {time} so that it rings at {new}.",
        "The alarm at {time} should ring at {new} instead.",
    ),
    "label": edit(ALARM, NEW_LABEL, "", hidden=True).asked(
        "Change the label of the {time} alarm to {label}.",
        "Call the alarm at {time} {label}.",
        "Label the {time} alarm {label}.",
    ),
    "days": edit(ALARM, DAYS_FIELD, "", hidden=True).asked(
        "Let the {time} alarm ring {days}.",
        "Change the days of the {time} alarm to {days}.",
        "Set the alarm at {time} to {days}.",
    ),
    "vibrate": switch(ALARM, "vibrate", "other", "vibrate", tap("save"), hidden=True).asked_in_tests(
        "Turn vibrate {state} for the {time} alarm.",
        "Switch vibrate {state} in the alarm at {time}.",
        "The alarm at {time}: vibrate {state}.",
    ),
    "delete": delete(HELD, "delete").asked(
        "Delete the alarm at {time}.",
        "Remove the {time} alarm.",
        "I do not need the alarm at {time} any more: delete it.",
    ),
    "turn-all-off": Template(turn_all_off).asked_in_tests(
        "Turn off all alarms.", "Switch every alarm off.", "No alarm may ring: turn all of them off."
    ),
    "timer": Template(timer).asked(
        "Start a timer of {minutes} minutes.",
        "Set the timer to {minutes} minutes and start it.",
        "Let a timer run for {minutes} minutes.",
    ),
    "city": Template(city).asked(
        "Add {city} to the cities of the clock.",
        "Show the time of {city} in my clock.",
        "Put the city {city} into the clock.",
    ),
    "turn-on-and-label": in_turn(TURN_ON, edit(OTHER, NEW_LABEL, "", hidden=True)).asked(
        "Turn on the alarm at {time} and label the alarm at {other} {label}.",
        "Switch the {time} alarm on; the one at {other} gets the label {label}.",
        "Label the {other} alarm {label}, and turn on the {time} alarm.",
    ),
    "add-and-timer": in_turn(ADD, Template(timer)).asked(
        "Set an alarm for {time} and start a timer of {minutes} minutes.",
        "Start a {minutes} minute timer and add an alarm at {time}.",
        "I need an alarm at {time} and a running timer of {minutes} minutes.",
    ),
    "turn-on-and-timer": in_turn(TURN_ON, Template(timer)).asked(
        "Turn on the alarm at {time} and start a timer of {minutes} minutes.",
        "Start a {minutes} minute timer and switch the {time} alarm on.",
        "The alarm at {time} must be on, and a timer of {minutes} minutes must run.",
    ),
    "ask-on": count("alarm", "on", True).asked(
        "How many alarms are on?", "How many alarms will ring?", "Count the alarms that are turned on."
    ),
    "ask-label": ask(ALARM, "label", "text", words.LABELS).asked(
        "What is the label of the {time} alarm?",
        "How is the alarm at {time} labelled?",
        "Tell me the label of the alarm at {time}.",
    ),
    "ask-days": ask(ALARM, "days", "text", DAYS).asked_in_tests(
        "On which days does the {time} alarm ring?",
        "What are the days of the alarm at {time}?",
        "How often does the {time} alarm ring?",
    ),
    "ask-first": Template(first, "query").asked(
        "When does the first alarm that is on ring?",
        "At what time will the earliest alarm ring that is turned on?",
        "Tell me the time of the first alarm that is on.",
    ),
    "ask-which": Template(which, "query", exhibits=2).asked(
        "Which alarm has the label {label}, the one at {time} or the one at {other}?",
        "Is {label} the label of the alarm at {time} or at {other}?",
        "{label}: is that the {time} or the {other} alarm?",
    ),
    "ask-city": ask(CITY, "hours").asked(
        "How many hours is {city} ahead or behind?",
        "What is the time difference of {city} in hours?",
        "By how many hours does the time in {city} differ?",
    ),
    "ask-both-vibrate": both_on(ALARM, OTHER, "vibrate").asked(
        "Do the alarms at {time} and {other} both vibrate?",
        "Is vibrate on for the {time} alarm and for the {other} alarm?",
        "The alarms at {time} and {other}: do both of them vibrate?",
    ),
}
