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
    "star": STAR.asked(
        "Star {name}.", "Give the place {name} a star.", "Mark {name} with a star on the map."
    ),
    "unstar": switch(STARRED, "star", False, seek=True).asked(
        "Remove the star of {name}.",
        "Take the star away from the place {name}.",
        "{name} should not have a star any more.",
    ),
    "route": Template(route).asked(
        "Show me the way to {name} by {mode}.",
        "Start the route to {name}, by {mode}.",
        "Take me to {name} by {mode}.",
    ),
    "home": live("home").asked(
        "Make {name} my home.", "Set home to {name}.", "I live at {name}: set it as home."
    ),
    "work": live("work").asked(
        "Make {name} my work place.", "Set work to {name}.", "I work at {name}: set it."
    ),
    "traffic": TURN_TRAFFIC.asked(
        "Turn traffic {state} on the map.", "Switch traffic {state}.", "The map should have traffic {state}."
    ),
    "units": choose(MAP_UNITS, "value", UNITS, "units").asked(
        "Set the units of the map to {units}.", "Use {units} on the map.", "Change the units to {units}."
    ),
    "note": edit(PLACE, Field("note", words.REMARKS), "", prove=[tap("note"), BACK]).asked_in_tests(
        "Write the note {note} to {name}.",
        "Note {note} for the place {name}.",
        "Set the note of {name} to {note}.",
    ),
    "star-and-traffic": in_turn(STAR, TURN_TRAFFIC, BACK).asked(
        "Star {name} and turn traffic {state}.",
        "Switch traffic {state} and give {name} a star.",
        "Two things: a star for {name}; traffic {state}.",
    ),
    "home-and-route": Template(home_and_route, hidden=True, exhibits=2).asked_in_tests(
        "Make {name} my home and take me to {other} by {mode}.",
        "Set home to {name}, then start the route to {other} by {mode}.",
        "Show me the way to {other} by {mode}; and {name} is my home now.",
    ),
    "star-two": in_any_order(STAR, switch(OTHER, "star", True)).asked(
        "Star {name} and {other}.",
        "Give the places {name} and {other} a star.",
        "Mark two places with a star: {name}, {other}.",
    ),
    "ask-street": ask(PLACE, "street", "text", words.STREETS).asked(
        "In which street is {name}?", "What is the street of {name}?", "Where is {name}? Tell the street."
    ),
    "ask-closes": ask(PLACE, "closes", "time").asked(
        "When does {name} close?", "Until what time is {name} open?", "At what time does {name} close?"
    ),
    "ask-stars": count("place", "star", True, *STARS).asked(
        "How many places have a star?", "How many of the places are starred?", "Count the places with a star."
    ),
    "ask-minutes": Template(minutes, "query").asked_in_tests(
        "How many minutes is it to {name} by {mode}?",
        "How long does the way to {name} take by {mode}, in minutes?",
        "By {mode}, how many minutes away is {name}?",
    ),
    "ask-better": ranked(PLACE, OTHER, "rating", range(3, 11), last=True).asked(
        "Which has the better rating, {name} or {other}?",
        "Is {name} or {other} rated higher?",
        "{name} or {other}: which has the higher rating?",
    ),
    "ask-later": ranked(PLACE, OTHER, "closes", CLOSING, last=True).asked(
        "Which closes later, {name} or {other}?",
        "Is {name} or {other} open for longer in the evening?",
        "{name} or {other}: which closes later?",
    ),
}
