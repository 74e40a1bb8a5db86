"""Questions about places and routes."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.apps.maps_app import MODES
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.maps_tasks import OPEN, STARS, both, spot
from selfverify_phone.templates.ways import tap

SHELF = Shelf("maps")


def asked(world: World, field: str, form: str, others: tuple[str, ...] = ()) -> Drawn:
    key, name = spot(world)
    found = world.get("place", key)[field]
    other = tuple(text for text in others if text != found)
    return Drawn(
        {"name": name},
        [Has(kind="place", match={"name": name}, values={field: found})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(form=form, value=str(found), others=other),
    )


@SHELF.query(
    "In which street is {name}?", "What is the street of {name}?", "Where is {name}? Tell the street."
)
def ask_street(world: World) -> Drawn:
    return asked(world, "street", "text", words.STREETS)


@SHELF.query("When does {name} close?", "Until what time is {name} open?", "At what time does {name} close?")
def ask_closes(world: World) -> Drawn:
    return asked(world, "closes", "time")


@SHELF.query(
    "How many places have a star?", "How many of the places are starred?", "Count the places with a star."
)
def ask_stars(world: World) -> Drawn:
    number = sum(bool(record["star"]) for record in world.data["place"].values())
    return Drawn(
        {},
        [Listed(kind="place", match={"star": True})],
        [OPEN, *STARS],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "How many minutes is it to {name} by {mode}?",
    "How long does the way to {name} take by {mode}, in minutes?",
    "By {mode}, how many minutes away is {name}?",
    held_out=True,
)
def ask_minutes(world: World) -> Drawn:
    key, name = spot(world)
    mode = world.one(MODES)
    minutes = int(world.get("place", key)[mode])
    return Drawn(
        {"name": name, "mode": mode},
        [Has(kind="place", match={"name": name}, values={mode: minutes})],
        [OPEN, tap(f"r{key}"), tap("route")],
        answer=Answer(form="number", value=str(minutes)),
    )


@SHELF.query(
    "Which has the better rating, {name} or {other}?",
    "Is {name} or {other} rated higher?",
    "{name} or {other}: which has the higher rating?",
    exhibits=2,
)
def ask_better(world: World) -> Drawn:
    (key, name), (second, other) = spot(world), spot(world)
    high, low = sorted(world.some(range(3, 11), 2), reverse=True)
    world.get("place", key)["rating"], world.get("place", second)["rating"] = high, low
    one, two = (name, other) if world.flip() else (other, name)
    return Drawn(
        {"name": one, "other": two},
        [
            Has(kind="place", match={"name": name}, values={"rating": high}),
            Has(kind="place", match={"name": other}, values={"rating": low}),
        ],
        [OPEN, both([tap(f"r{key}")], [tap(f"r{second}")])],
        answer=Answer(value=name, others=(other,)),
    )


@SHELF.query(
    "Which closes later, {name} or {other}?",
    "Is {name} or {other} open for longer in the evening?",
    "{name} or {other}: which closes later?",
    exhibits=2,
)
def ask_later(world: World) -> Drawn:
    (key, name), (second, other) = spot(world), spot(world)
    early, late = sorted(world.some(range(16, 24), 2))
    times = {key: f"{late}:00", second: f"{early}:00"}
    for place, time in times.items():
        world.get("place", place)["closes"] = time
    one, two = (name, other) if world.flip() else (other, name)
    return Drawn(
        {"name": one, "other": two},
        [
            Has(kind="place", match={"name": name}, values={"closes": times[key]}),
            Has(kind="place", match={"name": other}, values={"closes": times[second]}),
        ],
        [OPEN, both([tap(f"r{key}")], [tap(f"r{second}")])],
        answer=Answer(value=name, others=(other,)),
    )
