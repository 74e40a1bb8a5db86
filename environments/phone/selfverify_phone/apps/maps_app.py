"""Maps: places, favourites, routes and options."""

from __future__ import annotations

from functools import partial

from selfverify.agents.facts import Listing
from selfverify_phone.system.device import App, Frame, Phone
from selfverify_phone.system.forms import (
    draft,
    facts_of,
    field,
    in_order,
    options_of,
    row_id,
    search_of,
)
from selfverify_phone.system.widgets import View, Widget, button, counted, icon, row, switch, text

VIEWS = ("places", "stars", "options")
MODES = ("car", "bike", "foot")
UNITS = ("Km", "Miles")


def root(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("view", "places")
    made = options(phone) if now == "options" else places(phone, now == "stars")
    made.bar = [
        icon("menu", partial(phone.open, "drawer")),
        icon("search", partial(phone.open, "search", focus="query")),
    ]
    return made


def drawer(phone: Phone, frame: Frame) -> View:
    def go(name: str) -> None:
        phone.close()
        phone.frame["form"]["view"] = name
        phone.frame["scroll"] = 0

    return View("Maps", [row(name, name.capitalize(), partial(go, name)) for name in VIEWS], style="drawer")


def line(phone: Phone, key: str, *attributes: str) -> Widget:
    record = phone.data["place"][key]
    facts = facts_of("place", key, record, "name", "kind", *attributes)
    return row(
        row_id(key), str(record["name"]), partial(phone.open, "place", key=key), str(record["kind"]), facts
    )


def places(phone: Phone, stars: bool) -> View:
    records = phone.data["place"]
    keys = in_order(records, "name", [key for key in records if not stars or records[key]["star"]])
    listed = Listing.of("place", "star", "=", "True") if stars else Listing.of("place")
    return View(
        "Stars" if stars else "Maps",
        [line(phone, key, *(["star"] if stars else [])) for key in keys],
        count=len(keys),
        facts=(counted(listed, len(keys)),),
    )


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "place", "name", partial(line, phone))


def place(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["place"][key]

    def star() -> None:
        record["star"] = not record["star"]

    def make(name: str) -> None:
        phone.data["map"][name]["value"] = record["name"]
        phone.toast("Saved")

    def said(name: str, shown: str) -> Widget:
        return text(name.capitalize(), shown, *facts_of("place", key, record, name))

    return View(
        str(record["name"]),
        [
            said("street", str(record["street"])),
            said("rating", f"{record['rating']} of 10"),
            said("closes", str(record["closes"])),
            row("note", "Note", partial(phone.open, "note", focus="note", key=key)),
            button("route", "Route", partial(phone.open, "route", key=key)),
            button("home", "Make it home", partial(make, "home")),
            button("work", "Make it work", partial(make, "work")),
        ],
        bar=[icon("star", star, on=bool(record["star"]), facts=facts_of("place", key, record, "star"))],
        facts=facts_of("place", key, record, "name"),
    )


def note(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["place"][key]
    now = draft(frame, {"note": record["note"]})["note"]
    saved = now == record["note"]

    def save() -> None:
        phone.close()
        record["note"] = now
        phone.toast("Saved")

    facts = facts_of("place", key, record, "note") if saved else ()
    body = [
        field(phone, frame, "note", now, facts=facts),
        button("save", "Save", save, enabled=not saved),
    ]
    title = facts_of("place", key, record, "name")
    return View(str(record["name"]), body, style="dialog", facts=title)


def route(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["place"][key]
    way = phone.data["route"]["main"]
    going = bool(way["on"]) and way["to"] == record["name"]

    def start(mode: str) -> None:
        way.update(to=record["name"], mode=mode, on=True)

    def stop() -> None:
        way["on"] = False

    body: list[Widget] = []
    if going:
        facts = facts_of("route", "main", way, "to", "mode", "on")
        body = [text("On the way by", str(way["mode"]), *facts), button("stop", "Stop", stop)]
    body += [
        row(mode, mode.capitalize(), partial(start, mode), f"{record[mode]} min",
            facts_of("place", key, record, mode))
        for mode in MODES
    ]  # fmt: skip
    return View(str(record["name"]), body, facts=facts_of("place", key, record, "name"))


def options(phone: Phone) -> View:
    records = phone.data["map"]

    def traffic() -> None:
        records["traffic"]["value"] = not records["traffic"]["value"]

    def fact(name: str) -> tuple[tuple[str, str, str | int | bool], ...]:
        return facts_of("map", name, records[name], "value")

    return View(
        "Options",
        [
            switch("traffic", "Traffic", bool(records["traffic"]["value"]), traffic, *fact("traffic")),
            row("units", "Units", partial(phone.open, "units")),
            text("Home", str(records["home"]["value"]), *fact("home")),
            text("Work", str(records["work"]["value"]), *fact("work")),
        ],
    )


def units(phone: Phone, frame: Frame) -> View:
    record = phone.data["map"]["units"]

    def pick(value: str) -> None:
        phone.close()
        record["value"] = value

    facts = facts_of("map", "units", record, "value")
    return View("Units", options_of(UNITS, str(record["value"]), pick, facts), style="dialog")


APP = App(
    "maps",
    "Maps",
    "#00838f",
    ("place", "map", "route"),
    {
        "root": root,
        "drawer": drawer,
        "search": search,
        "place": place,
        "note": note,
        "route": route,
        "units": units,
    },
)
