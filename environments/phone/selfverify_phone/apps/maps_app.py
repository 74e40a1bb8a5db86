"""Maps: places, favourites, routes and options."""

from __future__ import annotations

from functools import partial

from selfverify_phone.system.device import App, Frame, Phone
from selfverify_phone.system.forms import Builder, draft, field, in_order
from selfverify_phone.system.records import Kind, opens, with_drawer
from selfverify_phone.system.widgets import View, Widget, button, row, text

MODES = ("car", "bike", "foot")
UNITS = ("Km", "Miles")
PLACE, MAP, ROUTE = Kind("place", "name", leads=True), Kind("map"), Kind("route")


def spot(phone: Phone, key: str, *attributes: str) -> Widget:
    value = str(phone.data["place"][key]["kind"])
    return PLACE.line(phone, key, "name", "kind", *attributes, value=value)


def places(phone: Phone, frame: Frame) -> View:
    keys = in_order(phone.data["place"], "name")
    return PLACE.listed("Maps", [spot(phone, key) for key in keys])


def stars(phone: Phone, frame: Frame) -> View:
    records = phone.data["place"]
    keys = in_order(records, "name", [key for key in records if records[key]["star"]])
    return PLACE.listed("Stars", [spot(phone, key, "star") for key in keys], "star", "=", "True")


def place(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["place"][key]

    def make(name: str) -> None:
        phone.data["map"][name]["value"] = record["name"]
        phone.toast("Saved")

    body = [
        PLACE.said(phone, key, "street"),
        PLACE.said(phone, key, "rating", f"{record['rating']} of 10"),
        PLACE.said(phone, key, "closes"),
        row("note", "Note", opens(phone, "note", focus="note", key=key)),
        button("route", "Route", opens(phone, "route", key=key)),
        button("home", "Make it home", partial(make, "home")),
        button("work", "Make it work", partial(make, "work")),
    ]
    return PLACE.page(phone, key, body, bar=[PLACE.icon(phone, key, "star", "star")])


def note(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["place"][key]
    now = draft(frame, {"note": record["note"]})["note"]
    saved = now == record["note"]

    def save() -> None:
        phone.close()
        record["note"] = now
        phone.toast("Saved")

    facts = PLACE.facts(phone, key, "note") if saved else ()
    body = [field(phone, frame, "note", now, facts=facts), button("save", "Save", save, enabled=not saved)]
    return PLACE.page(phone, key, body, style="dialog")


def route(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record, way = phone.data["place"][key], phone.data["route"]["main"]

    def start(mode: str) -> None:
        way.update(to=record["name"], mode=mode, on=True)

    def stop() -> None:
        way["on"] = False

    body: list[Widget] = []
    if way["on"] and way["to"] == record["name"]:
        facts = ROUTE.facts(phone, "main", "to", "mode", "on")
        body = [text("On the way by", str(way["mode"]), *facts), button("stop", "Stop", stop)]
    for mode in MODES:
        facts = PLACE.facts(phone, key, mode)
        body.append(row(mode, mode.capitalize(), partial(start, mode), f"{record[mode]} min", facts))
    return PLACE.page(phone, key, body)


def options(phone: Phone, frame: Frame) -> View:
    def lives(name: str) -> Widget:
        record = phone.data["map"][name]
        return text(name.capitalize(), str(record["value"]), *MAP.facts(phone, name, "value"))

    traffic = MAP.switch(phone, "traffic", "value", "traffic", "Traffic")
    return View(
        "Options", [traffic, row("units", "Units", opens(phone, "units")), lives("home"), lives("work")]
    )


def units(phone: Phone, frame: Frame) -> View:
    return MAP.choices(phone, "Units", "units", "value", UNITS)


SCREENS: dict[str, Builder] = {
    **with_drawer("Maps", {"places": places, "stars": stars, "options": options}),
    "search": PLACE.search(spot),
    "place": place,
    "note": note,
    "route": route,
    "units": units,
}
APP = App("maps", "Maps", "#00838f", ("place", "map", "route"), SCREENS)
