"""Questions about events."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.apps.calendar_app import DAYS, day_id
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.calendar_tasks import OPEN, event, onward, to
from selfverify_phone.templates.ways import BACK, Step, either, tap, write

SHELF = Shelf("calendar")


def searched(title: str, key: str) -> Step:
    """From the days to an event whose day is not known."""
    return either([tap("search"), write(title), tap(f"r{key}")])


def asked(world: World, field: str, form: str, others: tuple[str, ...] = ()) -> Drawn:
    key, title = event(world)
    value = str(world.get("event", key)[field])
    answer = Answer(form=form, value=value, others=tuple(o for o in others if o != value))
    return Drawn(
        {"title": title, "on": str(world.get("event", key)["day"])},
        [Has(kind="event", match={"title": title}, values={field: value})],
        [OPEN, to(world, key) if field != "day" else searched(title, key)],
        answer=answer,
    )


@SHELF.query(
    "Where is the event {title} on {on}?",
    "What is the place of {title} on {on}?",
    "At which place is {title} on {on}?",
)
def ask_place(world: World) -> Drawn:
    return asked(world, "place", "text", words.PLACES)


@SHELF.query(
    "On which day is {title}?",
    "What is the date of the event {title}?",
    "When is {title}? Tell me the day.",
)
def ask_day(world: World) -> Drawn:
    return asked(world, "day", "text", DAYS)


@SHELF.query(
    "How many events are on {day}?",
    "Count the events of {day}.",
    "How many events do I have on {day}?",
)
def ask_count(world: World) -> Drawn:
    world.use("event")
    day = str(world.one(list(world.data["event"].values()))["day"])
    number = sum(record["day"] == day for record in world.data["event"].values())
    return Drawn(
        {"day": day},
        [Listed(kind="event", match={"day": day})],
        [OPEN, tap(day_id(day))],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "Which event is the first on {day}?",
    "What begins first on {day}?",
    "Tell me the first event of {day}.",
    held_out=True,
)
def ask_first(world: World) -> Drawn:
    key = world.pick("event")
    day = str(world.get("event", key)["day"])
    for other, record in world.data["event"].items():
        if record["day"] == day:
            world.use("event", other)
    records = [r for r in world.data["event"].values() if r["day"] == day]
    first = min(records, key=lambda record: str(record["time"]))
    if sum(record["time"] == first["time"] for record in records) > 1:
        first["time"] = "04:45"
    others = tuple(str(r["title"]) for r in records if r is not first)
    return Drawn(
        {"day": day},
        [Listed(kind="event", match={"day": day}, attributes=("time", "title"))],
        [OPEN, tap(day_id(day))],
        answer=Answer(value=str(first["title"]), others=others),
    )


@SHELF.query(
    "Are {title} on {on} and {other} on {also} at the same place?",
    "Do {title} on {on} and {other} on {also} have the same place?",
    "Is the place of {title} on {on} also that of {other} on {also}?",
    exhibits=2,
)
def ask_same_place(world: World) -> Drawn:
    key, title = event(world)
    second, other = event(world)
    place = str(world.get("event", key)["place"])
    world.get("event", second)["place"] = place if world.flip() else world.one(words.PLACES, place)
    theirs = str(world.get("event", second)["place"])
    if world.get("event", key)["day"] == world.get("event", second)["day"]:
        then = [tap(f"r{second}")]
    else:
        days = [str(world.get("event", k)["day"]) for k in (key, second)]
        then = [onward(days[0], days[1], tap(f"r{second}"))]
    again = [BACK, tap("query"), write(other), tap(f"r{second}")]
    return Drawn(
        {
            "title": title,
            "on": str(world.get("event", key)["day"]),
            "other": other,
            "also": str(world.get("event", second)["day"]),
        },
        [
            Has(kind="event", match={"title": title}, values={"place": place}),
            Has(kind="event", match={"title": other}, values={"place": theirs}),
        ],
        [OPEN, either([to(world, key), BACK, *then], [searched(title, key), *again])],
        answer=Answer(form="yes-no", value="yes" if place == theirs else "no"),
    )


@SHELF.query(
    "Which event is on an earlier day, {title} or {other}?",
    "Is {title} or {other} earlier in the calendar?",
    "{title} or {other}: which of them comes first?",
    exhibits=2,
)
def ask_earlier(world: World) -> Drawn:
    (key, title), (second, other) = event(world), event(world)
    early, late = sorted(world.some(range(len(DAYS)), 2))
    world.get("event", key)["day"], world.get("event", second)["day"] = DAYS[early], DAYS[late]
    one, two = (title, other) if world.flip() else (other, title)
    return Drawn(
        {"title": one, "other": two},
        [
            Has(kind="event", match={"title": title}, values={"day": DAYS[early]}),
            Has(kind="event", match={"title": other}, values={"day": DAYS[late]}),
        ],
        [OPEN, searched(title, key), BACK, tap("query"), write(other), tap(f"r{second}")],
        answer=Answer(value=title, others=(other,)),
    )
