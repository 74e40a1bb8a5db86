"""Tasks and questions about places and routes."""

from __future__ import annotations

from selfverify.agents.goals import Has
from selfverify_phone.apps.maps_app import MODES, UNITS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Field, Template, Thing, only
from selfverify_phone.templates.patterns import both, choose, edit, in_any_order, in_turn, shorter, switch
from selfverify_phone.templates.questions import ask, count, number, ranked
from selfverify_phone.templates.ways import BACK, either, tap

OPTIONS, STARS = ([tap("menu"), tap(view)] for view in ("options", "stars"))
PLACE, OTHER = Thing("place", {"name": "name"}), Thing("place", {"other": "name"})
STARRED = Thing(
    "place", {"name": "name"}, way=lambda world, key: [either([tap(f"r{key}")], [*STARS, tap(f"r{key}")])]
)
TRAFFIC, MAP_UNITS = (
    Thing("map", lead=OPTIONS, way=lambda world, name: [], draw=only(name)) for name in ("traffic", "units")
)
STAR, TURN_TRAFFIC = switch(PLACE, "star", True), switch(TRAFFIC, "value", "drawn")
CLOSING = [f"{hour}:00" for hour in range(16, 24)]


def routed(world: World, place: Thing) -> Drawn:
    """The way to a place, shown."""
    key = place.drawn(world)
    mode, says = world.one(MODES), place.said(world, key)
    return Drawn(
        {**says, "mode": mode},
        [Has(kind="route", key="main", values={"to": place.name(world, key), "mode": mode, "on": True})],
        [tap(f"r{key}"), tap("route"), tap(mode)],
    )


def route(world: World) -> Drawn:
    return routed(world, PLACE)


def live(what: str) -> Template:
    """A place that becomes home or work."""

    def draw(world: World) -> Drawn:
        key = PLACE.drawn(world)
        name = PLACE.name(world, key)
        if world.get("map", what)["value"] == name:
            world.get("map", what)["value"] = "Airport"
        needs = [Has(kind="map", key=what, values={"value": name})]
        return Drawn({"name": name}, needs, [tap(f"r{key}"), tap(what)], [BACK, *OPTIONS])

    return Template(draw, hidden=True)


def home_and_route(world: World) -> Drawn:
    home, way = live("home").draw(world), routed(world, OTHER)
    prove = either([BACK, *OPTIONS], [BACK, BACK, *OPTIONS])
    return both(home, way, [shorter(home.solve, way.solve)], [prove])


def minutes(world: World) -> Drawn:
    key = PLACE.drawn(world)
    mode = world.one(MODES)
    return Drawn(
        {**PLACE.said(world, key), "mode": mode},
        [PLACE.shows(world, key, mode)],
        [tap(f"r{key}"), tap("route")],
        answer=number(int(world.get("place", key)[mode])),
    )


TASKS: dict[str, Template] = {
    "star": STAR,
    "unstar": switch(STARRED, "star", False, seek=True),
    "route": Template(route),
    "home": live("home"),
    "work": live("work"),
    "traffic": TURN_TRAFFIC,
    "units": choose(MAP_UNITS, "value", UNITS, "units"),
    "note": edit(PLACE, Field("note", words.REMARKS), "", prove=[tap("note"), BACK]).kept_for_tests(),
    "star-and-traffic": in_turn(STAR, TURN_TRAFFIC, BACK),
    "home-and-route": Template(home_and_route, hidden=True, exhibits=2).kept_for_tests(),
    "star-two": in_any_order(STAR, switch(OTHER, "star", True)),
    "ask-street": ask(PLACE, "street", "text", words.STREETS),
    "ask-closes": ask(PLACE, "closes", "time"),
    "ask-stars": count("place", "star", True, *STARS),
    "ask-minutes": Template(minutes, "query").kept_for_tests(),
    "ask-better": ranked(PLACE, OTHER, "rating", range(3, 11), last=True),
    "ask-later": ranked(PLACE, OTHER, "closes", CLOSING, last=True),
}
