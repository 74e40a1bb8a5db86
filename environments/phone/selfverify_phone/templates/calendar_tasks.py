"""Tasks about events."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.calendar_app import DAYS, REMIND, day_id
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import BACK, Step, either, hold, launch, swipe, tap, write

SHELF = Shelf("calendar")
OPEN = launch("calendar")


def event(world: World) -> tuple[str, str]:
    """An event's key and title."""
    key = world.pick("event")
    return key, str(world.get("event", key)["title"])


def to(world: World, key: str) -> Step:
    """From the days to an event."""
    record = world.get("event", key)
    by_day = [tap(day_id(str(record["day"]))), tap(f"r{key}")]
    return either(by_day, [tap("search"), write(str(record["title"])), tap(f"r{key}")])


def onward(day: str, other: str, *then: Step) -> Step:
    """From one day's events to another's, and what is done there."""
    by = DAYS.index(other) - DAYS.index(day)
    ways = [[BACK, tap(day_id(other)), *then]]
    if abs(by) <= 2:
        ways.append([swipe("left" if by > 0 else "right")] * abs(by) + [*then])
    return either(*ways)


def new_title(world: World) -> str:
    return str(world.unlike("event", "title", lambda: world.one(words.TITLES)))


def adding(title: str, time: str, **typed: str) -> list[Step]:
    """From a day to a new event and back."""
    more = [step for field, value in typed.items() for step in (tap(field), write(value))]
    return [tap("add"), write(title), tap("time"), write(time), *more, tap("save")]


def option(values: tuple[str, ...], value: str) -> Step:
    word = value.casefold()
    return tap(word if word.isalpha() else f"o{values.index(value) + 1}")


@SHELF.operation(
    "Add the event {title} on {day} at {time}.",
    "Put {title} into the calendar: {day}, {time}.",
    "Create an event {title} for {day} at {time}.",
)
def add(world: World) -> Drawn:
    title, day, time = new_title(world), world.one(DAYS[1:]), world.time()
    return Drawn(
        {"title": title, "day": day, "time": time},
        [Has(kind="event", match={"title": title}, values={"day": day, "time": time}, new=True)],
        [OPEN, tap(day_id(day)), *adding(title, time)],
    )


@SHELF.operation(
    "Add the event {title} on {day}, place {place}.",
    "Put {title} into the calendar: {day}, at the {place}.",
    "Create an event {title} for {day} with the place {place}.",
    hidden=True,
)
def add_place(world: World) -> Drawn:
    title, day, place = new_title(world), world.one(DAYS[1:]), world.one(words.PLACES)
    key = world.next("event")
    return Drawn(
        {"title": title, "day": day, "place": place},
        [Has(kind="event", match={"title": title}, values={"day": day, "place": place}, new=True)],
        [OPEN, tap(day_id(day)), tap("add"), write(title), tap("place"), write(place), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Add the event {title} on {day} and remind me {remind} before.",
    "Create {title} on {day} with a reminder of {remind}.",
    "Put {title} on {day} into the calendar, remind: {remind}.",
    hidden=True,
    held_out=True,
)
def add_remind(world: World) -> Drawn:
    title, day, remind = new_title(world), world.one(DAYS[1:]), world.one(REMIND, "Never")
    key = world.next("event")
    return Drawn(
        {"title": title, "day": day, "remind": remind},
        [Has(kind="event", match={"title": title}, values={"day": day, "remind": remind}, new=True)],
        [
            OPEN,
            tap(day_id(day)),
            tap("add"),
            write(title),
            tap("remind"),
            option(REMIND, remind),
            tap("save"),
        ],
        [tap(f"r{key}")],
    )


def edited(world: World, field: str, new: str, *change: Step) -> Drawn:
    key, title = event(world)
    record = world.get("event", key)
    if record[field] == new:
        record[field] = {"place": "Office", "remind": "Never"}[field]
    return Drawn(
        {"title": title, "on": str(record["day"]), "new": new},
        [Has(kind="event", match={"title": title}, values={field: new})],
        [OPEN, to(world, key), tap("edit"), tap(field), *change, tap("save")],
    )


@SHELF.operation(
    "Move the event {title} on {on} to {new}.",
    "Let {title} on {on} begin at {new}.",
    "Change the time of {title} on {on} to {new}.",
)
def time(world: World) -> Drawn:
    new = str(world.unlike("event", "time", world.time))
    return edited(world, "time", new, write(new))


@SHELF.operation(
    "Change the place of {title} on {on} to {new}.",
    "{title} on {on} is at the {new} now: change the event.",
    "Set the place of the event {title} on {on} to {new}.",
)
def place(world: World) -> Drawn:
    new = world.one(words.PLACES)
    return edited(world, "place", new, write(new))


@SHELF.operation(
    "Remind me {new} before {title} on {on}.",
    "Set the reminder of {title} on {on} to {new}.",
    "Change remind to {new} for the event {title} on {on}.",
)
def remind(world: World) -> Drawn:
    new = world.one(REMIND, "Never")
    return edited(world, "remind", new, option(REMIND, new))


@SHELF.operation(
    "Move the event {title} from {on} to {day}.",
    "{title} is not on {on} but on {day}: change the event.",
    "Change the day of {title} from {on} to {day}.",
)
def day(world: World) -> Drawn:
    key, title = event(world)
    new = world.one(DAYS, str(world.get("event", key)["day"]))
    return Drawn(
        {"title": title, "day": new, "on": str(world.get("event", key)["day"])},
        [Has(kind="event", match={"title": title}, values={"day": new})],
        [OPEN, to(world, key), tap("edit"), tap("day"), option(DAYS, new), tap("save")],
    )


@SHELF.operation(
    "Delete the event {title} on {day}.",
    "Remove {title} from {day}.",
    "{title} on {day} will not be: delete it.",
)
def delete(world: World) -> Drawn:
    key, title = event(world)
    day = str(world.get("event", key)["day"])
    return Drawn(
        {"title": title, "day": day},
        [Absent(kind="event", key=key, match={"title": title, "day": day})],
        [OPEN, to(world, key), tap("delete"), tap("delete")],
    )


@SHELF.operation(
    "Add two events: {title} on {day} and {other} on {also}.",
    "Put {title} on {day} and {other} on {also} into the calendar.",
    "{title} is on {day}, {other} on {also}: create both events.",
    exhibits=2,
)
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
        [
            OPEN,
            either(
                [tap(day_id(day)), *one, onward(day, also, *two)],
                [tap(day_id(also)), *two, onward(also, day, *one)],
            ),
        ],
    )


@SHELF.operation(
    "Delete {title} on {day} and {other} on {also}.",
    "Remove two events: {title} on {day}, {other} on {also}.",
    "{title} on {day} and {other} on {also} will not be: delete both.",
    exhibits=2,
    held_out=True,
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
        [
            OPEN,
            either(
                [tap(day_id(days[0])), *one, onward(days[0], days[1], *two)],
                [tap(day_id(days[1])), *two, onward(days[1], days[0], *one)],
            ),
        ],
    )
