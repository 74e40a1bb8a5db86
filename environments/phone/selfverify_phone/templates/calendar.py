"""Tasks and questions about events."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Answer, Has, Listed
from selfverify_phone.apps.calendar_app import DAYS, EMPTY, REMIND, day_id
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Field, Template, Thing
from selfverify_phone.templates.patterns import delete, edit
from selfverify_phone.templates.questions import ask, number, ranked, yes
from selfverify_phone.templates.ways import BACK, Step, either, hold, swipe, tap, write


def to(world: World, key: str) -> list[Step]:
    """From the days to an event."""
    record = world.get("event", key)
    by_day = [tap(day_id(str(record["day"]))), tap(f"r{key}")]
    return [either(by_day, [tap("search"), write(str(record["title"])), tap(f"r{key}")])]


def searched(world: World, key: str) -> list[Step]:
    """From the days to an event whose day is not known."""
    return [either([tap("search"), write(str(world.get("event", key)["title"])), tap(f"r{key}")])]


def again(world: World, key: str) -> list[Step]:
    """From an event that was searched to another one."""
    return [BACK, tap("query"), write(str(world.get("event", key)["title"])), tap(f"r{key}")]


def onward(day: str, other: str, *then: Step) -> Step:
    """From one day's events to another's, and what is done there."""
    by = DAYS.index(other) - DAYS.index(day)
    ways = [[BACK, tap(day_id(other)), *then]]
    if abs(by) <= 2:
        ways.append([swipe("left" if by > 0 else "right")] * abs(by) + [*then])
    return either(*ways)


def on_two_days(day: str, one: list[Step], also: str, two: list[Step]) -> Step:
    """Something on one day and something on another, in the order that takes fewer calls."""
    return either(
        [tap(day_id(day)), *one, onward(day, also, *two)],
        [tap(day_id(also)), *two, onward(also, day, *one)],
    )


EVENT = Thing("event", {"title": "title", "on": "day"}, way=to)
OTHER = Thing("event", {"other": "title", "also": "day"})
DATED = Thing("event", {"title": "title", "on": "day"}, way=searched)
SOUGHT = Thing("event", {"title": "title"}, way=searched)
ALSO_SOUGHT = Thing("event", {"other": "title"}, again=again)
TIME = Field("time", draw=lambda world, record: world.time())
PLACE = Field("place", words.PLACES)
REMINDER = Field("remind", REMIND, chosen=True)


def add(field: Field, hidden: bool = True) -> Template:
    """A new event on a day, with one more value."""

    def draw(world: World) -> Drawn:
        title = str(world.unlike("event", "title", lambda: world.one(words.TITLES)))
        day, value = world.one(DAYS[1:]), field.drawn(world, EMPTY)
        return Drawn(
            {"title": title, "day": day, field.name: str(value)},
            [Has(kind="event", match={"title": title}, values={"day": day, field.name: value}, new=True)],
            [tap(day_id(day)), tap("add"), write(title), *field.enter(value), tap("save")],
            [tap(f"r{world.next('event')}")] if hidden else (),
        )

    return Template(draw, hidden=hidden)


def edit_new(field: Field, before: str = "") -> Template:
    """An event's value, drawn before the event, which is given ``before`` where it has that value already."""

    def draw(world: World) -> Drawn:
        new = field.drawn(world, {**EMPTY, "place": ""})
        key = EVENT.drawn(world)
        record = world.get("event", key)
        if record[field.name] == new:
            record[field.name] = before
        return Drawn(
            {**EVENT.said(world, key), "new": str(new)},
            [EVENT.has(world, key, {field.name: new})],
            [*to(world, key), tap("edit"), *field.enter(new), tap("save")],
        )

    return Template(draw)


def add_two(world: World) -> Drawn:
    taken = [str(record["title"]) for record in world.data["event"].values()]
    title, other = world.some([word for word in words.TITLES if word not in taken], 2)
    day, also = world.some(DAYS[1:], 2)
    one, two = ([tap("add"), write(name), tap("save")] for name in (title, other))
    return Drawn(
        {"title": title, "day": day, "other": other, "also": also},
        [
            Has(kind="event", match={"title": title}, values={"day": day}, new=True),
            Has(kind="event", match={"title": other}, values={"day": also}, new=True),
        ],
        [on_two_days(day, one, also, two)],
    )


def delete_two(world: World) -> Drawn:
    keys = [world.pick("event") for _ in range(4)]
    days = world.some(DAYS, 2)
    for i, key in enumerate(keys):
        world.get("event", key)["day"] = days[i % 2]
    titles = [str(world.get("event", key)["title"]) for key in keys]
    one, two = ([hold(f"r{key}"), tap("delete"), tap("delete")] for key in keys[:2])
    return Drawn(
        {"title": titles[0], "day": days[0], "other": titles[1], "also": days[1]},
        [Absent(kind="event", key=keys[i], match={"title": titles[i], "day": days[i]}) for i in range(2)],
        [on_two_days(days[0], one, days[1], two)],
    )


def how_many(world: World) -> Drawn:
    world.use("event")
    day = str(world.one(list(world.data["event"].values()))["day"])
    found = sum(record["day"] == day for record in world.data["event"].values())
    needs = [Listed(kind="event", match={"day": day})]
    return Drawn({"day": day}, needs, [tap(day_id(day))], answer=number(found))


def first(world: World) -> Drawn:
    day = str(world.get("event", world.pick("event"))["day"])
    records = {key: record for key, record in world.data["event"].items() if record["day"] == day}
    world.use("event", *records)
    earliest = min(records.values(), key=lambda record: str(record["time"]))
    if sum(record["time"] == earliest["time"] for record in records.values()) > 1:
        earliest["time"] = "04:45"
    others = tuple(str(r["title"]) for r in records.values() if r is not earliest)
    return Drawn(
        {"day": day},
        [Listed(kind="event", match={"day": day}, attributes=("time", "title"))],
        [tap(day_id(day))],
        answer=Answer(value=str(earliest["title"]), others=others),
    )


def same_place(world: World) -> Drawn:
    key, second = EVENT.drawn(world), OTHER.drawn(world)
    mine, theirs = world.get("event", key), world.get("event", second)
    place = str(mine["place"])
    theirs["place"] = place if world.flip() else world.one(words.PLACES, place)
    row = tap(f"r{second}")
    then = row if mine["day"] == theirs["day"] else onward(str(mine["day"]), str(theirs["day"]), row)
    return Drawn(
        EVENT.said(world, key) | OTHER.said(world, second),
        [EVENT.shows(world, key, "place"), OTHER.shows(world, second, "place")],
        [either([*to(world, key), BACK, then], [*searched(world, key), *again(world, second)])],
        answer=yes(place == theirs["place"]),
    )


TASKS: dict[str, Template] = {
    "add": add(TIME, hidden=False).asked(
        "Add the event {title} on {day} at {time}.",
        "Put {title} into the calendar: {day}, {time}.",
        "Create an event {title} for {day} at {time}.",
    ),
    "add-place": add(PLACE).asked(
        "Add the event {title} on {day}, place {place}.",
        "Put {title} into the calendar: {day}, at the {place}.",
        "Create an event {title} for {day} with the place {place}.",
    ),
    "add-remind": add(REMINDER).asked_in_tests(
        "Add the event {title} on {day} and remind me {remind} before.",
        "Create {title} on {day} with a reminder of {remind}.",
        "Put {title} on {day} into the calendar, remind: {remind}.",
    ),
    "time": edit_new(
        Field("time", draw=lambda world, record: str(world.unlike("event", "time", world.time)))
    ).asked(
        "Move the event {title} on {on} to {new}.",
        "Let {title} on {on} begin at {new}.",
        "Change the time of {title} on {on} to {new}.",
    ),
    "place": edit_new(PLACE, "Office").asked(
        "Change the place of {title} on {on} to {new}.",
        "{title} on {on} is at the {new} now: change the event.",
        "Set the place of the event {title} on {on} to {new}.",
    ),
    "remind": edit_new(REMINDER, "Never").asked(
        "Remind me {new} before {title} on {on}.",
        "Set the reminder of {title} on {on} to {new}.",
        "Change remind to {new} for the event {title} on {on}.",
    ),
    "day": edit(EVENT, Field("day", DAYS, chosen=True)).asked(
        "Move the event {title} from {on} to {day}.",
        "{title} is not on {on} but on {day}: change the event.",
        "Change the day of {title} from {on} to {day}.",
    ),
    "delete": delete(Thing("event", {"title": "title", "day": "day"}, way=to), "delete", "delete").asked(
        "Delete the event {title} on {day}.",
        "Remove {title} from {day}.",
        "{title} on {day} will not be: delete it.",
    ),
    "add-two": Template(add_two, exhibits=2).asked(
        "Add two events: {title} on {day} and {other} on {also}.",
        "Put {title} on {day} and {other} on {also} into the calendar.",
        "{title} is on {day}, {other} on {also}: create both events.",
    ),
    "delete-two": Template(delete_two, exhibits=2).asked_in_tests(
        "Delete {title} on {day} and {other} on {also}.",
        "Remove two events: {title} on {day}, {other} on {also}.",
        "{title} on {day} and {other} on {also} will not be: delete both.",
    ),
    "ask-place": ask(EVENT, "place", "text", words.PLACES).asked(
        "Where is the event {title} on {on}?",
        "What is the place of {title} on {on}?",
        "At which place is {title} on {on}?",
    ),
    "ask-day": ask(DATED, "day", "text", DAYS).asked(
        "On which day is {title}?",
        "What is the date of the event {title}?",
        "When is {title}? Tell me the day.",
    ),
    "ask-count": Template(how_many, "query").asked(
        "How many events are on {day}?", "Count the events of {day}.", "How many events do I have on {day}?"
    ),
    "ask-first": Template(first, "query").asked_in_tests(
        "Which event is the first on {day}?",
        "What begins first on {day}?",
        "Tell me the first event of {day}.",
    ),
    "ask-same-place": Template(same_place, "query", exhibits=2).asked(
        "Are {title} on {on} and {other} on {also} at the same place?",
        "Do {title} on {on} and {other} on {also} have the same place?",
        "Is the place of {title} on {on} also that of {other} on {also}?",
    ),
    "ask-earlier": ranked(SOUGHT, ALSO_SOUGHT, "day", DAYS).asked(
        "Which event is on an earlier day, {title} or {other}?",
        "Is {title} or {other} earlier in the calendar?",
        "{title} or {other}: which of them comes first?",
    ),
}
