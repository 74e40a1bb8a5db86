"""Tasks about places and routes."""

from __future__ import annotations

from selfverify.agents.goals import Has
from selfverify_phone.apps.maps_app import MODES, UNITS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import BACK, Step, either, launch, tap, write

SHELF = Shelf("maps")
OPEN = launch("maps")
OPTIONS, STARS = ([tap("menu"), tap(view)] for view in ("options", "stars"))


def spot(world: World) -> tuple[str, str]:
    """A place's key and name."""
    key = world.pick("place")
    return key, str(world.get("place", key)["name"])


def value(name: str, wanted: bool | str) -> Has:
    return Has(kind="map", key=name, values={"value": wanted})


def both(one: list[Step], two: list[Step]) -> Step:
    """Two visits to places, in the order that takes fewer calls."""
    return either([*one, BACK, *two], [*two, BACK, *one])


@SHELF.operation("Star {name}.", "Give the place {name} a star.", "Mark {name} with a star on the map.")
def star(world: World) -> Drawn:
    key, name = spot(world)
    world.get("place", key)["star"] = False
    return Drawn(
        {"name": name},
        [Has(kind="place", match={"name": name}, values={"star": True})],
        [OPEN, tap(f"r{key}"), tap("star")],
    )


@SHELF.operation(
    "Remove the star of {name}.",
    "Take the star away from the place {name}.",
    "{name} should not have a star any more.",
)
def unstar(world: World) -> Drawn:
    key = world.pick("place", star=True)
    name = str(world.get("place", key)["name"])
    return Drawn(
        {"name": name},
        [Has(kind="place", match={"name": name}, values={"star": False})],
        [OPEN, either([tap(f"r{key}")], [*STARS, tap(f"r{key}")]), tap("star")],
    )


@SHELF.operation(
    "Show me the way to {name} by {mode}.",
    "Start the route to {name}, by {mode}.",
    "Take me to {name} by {mode}.",
)
def route(world: World) -> Drawn:
    key, name = spot(world)
    mode = world.one(MODES)
    return Drawn(
        {"name": name, "mode": mode},
        [Has(kind="route", key="main", values={"to": name, "mode": mode, "on": True})],
        [OPEN, tap(f"r{key}"), tap("route"), tap(mode)],
    )


def resident(world: World, what: str) -> tuple[str, str]:
    """A place that is not yet home or work."""
    key, name = spot(world)
    if world.get("map", what)["value"] == name:
        world.get("map", what)["value"] = "Airport"
    return key, name


def home_of(world: World, what: str) -> Drawn:
    key, name = resident(world, what)
    return Drawn(
        {"name": name},
        [value(what, name)],
        [OPEN, tap(f"r{key}"), tap(what)],
        [BACK, *OPTIONS],
    )


@SHELF.operation(
    "Make {name} my home.", "Set home to {name}.", "I live at {name}: set it as home.", hidden=True
)
def home(world: World) -> Drawn:
    return home_of(world, "home")


@SHELF.operation(
    "Make {name} my work place.", "Set work to {name}.", "I work at {name}: set it.", hidden=True
)
def work(world: World) -> Drawn:
    return home_of(world, "work")


def traffic_to(world: World, wanted: bool) -> None:
    world.get("map", "traffic")["value"] = not wanted


@SHELF.operation(
    "Turn traffic {state} on the map.", "Switch traffic {state}.", "The map should have traffic {state}."
)
def traffic(world: World) -> Drawn:
    wanted = world.flip()
    traffic_to(world, wanted)
    return Drawn(
        {"state": "on" if wanted else "off"},
        [value("traffic", wanted)],
        [OPEN, *OPTIONS, tap("traffic")],
    )


@SHELF.operation(
    "Set the units of the map to {units}.",
    "Use {units} on the map.",
    "Change the units to {units}.",
    hidden=True,
)
def units(world: World) -> Drawn:
    wanted = world.one(UNITS, str(world.get("map", "units")["value"]))
    return Drawn(
        {"units": wanted},
        [value("units", wanted)],
        [OPEN, *OPTIONS, tap("units"), tap(wanted.casefold())],
        [tap("units")],
    )


@SHELF.operation(
    "Write the note {note} to {name}.",
    "Note {note} for the place {name}.",
    "Set the note of {name} to {note}.",
    hidden=True,
    held_out=True,
)
def note(world: World) -> Drawn:
    key, name = spot(world)
    new = world.one(words.REMARKS, str(world.get("place", key)["note"]))
    return Drawn(
        {"note": new, "name": name},
        [Has(kind="place", match={"name": name}, values={"note": new})],
        [OPEN, tap(f"r{key}"), tap("note"), write(new), tap("save")],
        [tap("note"), BACK],
    )


@SHELF.operation(
    "Star {name} and turn traffic {state}.",
    "Switch traffic {state} and give {name} a star.",
    "Two things: a star for {name}; traffic {state}.",
    exhibits=2,
)
def star_and_traffic(world: World) -> Drawn:
    key, name = spot(world)
    world.get("place", key)["star"] = False
    wanted = world.flip()
    traffic_to(world, wanted)
    return Drawn(
        {"name": name, "state": "on" if wanted else "off"},
        [Has(kind="place", match={"name": name}, values={"star": True}), value("traffic", wanted)],
        [OPEN, tap(f"r{key}"), tap("star"), BACK, *OPTIONS, tap("traffic")],
    )


@SHELF.operation(
    "Make {name} my home and take me to {other} by {mode}.",
    "Set home to {name}, then start the route to {other} by {mode}.",
    "Show me the way to {other} by {mode}; and {name} is my home now.",
    hidden=True,
    exhibits=2,
    held_out=True,
)
def home_and_route(world: World) -> Drawn:
    key, name = resident(world, "home")
    second, other = spot(world)
    mode = world.one(MODES)
    return Drawn(
        {"name": name, "other": other, "mode": mode},
        [value("home", name), Has(kind="route", key="main", values={"to": other, "mode": mode, "on": True})],
        [OPEN, both([tap(f"r{key}"), tap("home")], [tap(f"r{second}"), tap("route"), tap(mode)])],
        [either([BACK, *OPTIONS], [BACK, BACK, *OPTIONS])],
    )


@SHELF.operation(
    "Star {name} and {other}.",
    "Give the places {name} and {other} a star.",
    "Mark two places with a star: {name}, {other}.",
    exhibits=2,
)
def star_two(world: World) -> Drawn:
    found = [spot(world) for _ in range(2)]
    for key, _ in found:
        world.get("place", key)["star"] = False
    one, two = ([tap(f"r{key}"), tap("star")] for key, _ in found)
    return Drawn(
        {"name": found[0][1], "other": found[1][1]},
        [Has(kind="place", match={"name": name}, values={"star": True}) for _, name in found],
        [OPEN, both(one, two)],
    )
