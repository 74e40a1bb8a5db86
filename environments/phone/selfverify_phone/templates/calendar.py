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
    "add": add(TIME, hidden=False),
    "add-place": add(PLACE),
    "add-remind": add(REMINDER).kept_for_tests(),
    "time": edit_new(
        Field("time", draw=lambda world, record: str(world.unlike("event", "time", world.time)))
    ),
    "place": edit_new(PLACE, "Office"),
    "remind": edit_new(REMINDER, "Never"),
    "day": edit(EVENT, Field("day", DAYS, chosen=True)),
    "delete": delete(Thing("event", {"title": "title", "day": "day"}, way=to), "delete", "delete"),
    "add-two": Template(add_two, exhibits=2),
    "delete-two": Template(delete_two, exhibits=2).kept_for_tests(),
    "ask-place": ask(EVENT, "place", "text", words.PLACES),
    "ask-day": ask(DATED, "day", "text", DAYS),
    "ask-count": Template(how_many, "query"),
    "ask-first": Template(first, "query").kept_for_tests(),
    "ask-same-place": Template(same_place, "query", exhibits=2),
    "ask-earlier": ranked(SOUGHT, ALSO_SOUGHT, "day", DAYS),
}
