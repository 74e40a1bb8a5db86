"""Clock: alarms, cities and a timer."""

from __future__ import annotations

from functools import partial
from typing import Any

from selfverify.agents.facts import Listing
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import (
    changed,
    choose,
    confirm,
    draft,
    facts_of,
    field,
    picked,
    row_id,
    time_of_day,
    view,
    whole_number,
)
from selfverify_phone.system.widgets import (
    View,
    Widget,
    button,
    counted,
    icon,
    row,
    switch,
    tab,
    text,
)

DAYS = ("Once", "Daily", "Weekdays", "Weekend")
EMPTY: Record = {"time": "08:00", "on": True, "label": "", "days": "Once", "vibrate": True}
CITIES = {
    "Berlin": 0, "Cairo": 1, "Delhi": 4, "Lima": -7, "London": -1, "Moscow": 1, "Oslo": 0, "Paris": 0,
    "Rome": 0, "Seoul": 7, "Sydney": 8, "Tokyo": 7,
}  # fmt: skip
"""Hours ahead of the phone's own time."""


def hours(number: int) -> str:
    return f"{'+' if number >= 0 else '-'}{abs(number)} h"


def root(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("view", "alarms")
    names = ("alarms", "cities", "timer")
    tabs = [tab(name, name.capitalize(), name == now, partial(view, phone, name)) for name in names]
    screen = {"alarms": alarms, "cities": cities, "timer": timer}[now](phone, frame)
    screen.tabs = tabs
    return screen


def alarms(phone: Phone, frame: Frame) -> View:
    records = phone.data["alarm"]
    keys = sorted(records, key=lambda key: (str(records[key]["time"]), int(key)))

    def line(key: str) -> Widget:
        record = records[key]

        def toggle() -> None:
            record["on"] = not record["on"]

        return row(
            row_id(key),
            str(record["time"]),
            partial(phone.open, "alarm", key=key),
            facts=facts_of("alarm", key, record, "time"),
            hold=partial(phone.open, "delete", key=key, back=1),
            part=switch(f"s{key}", "", bool(record["on"]), toggle, *facts_of("alarm", key, record, "on")),
        )

    return View(
        "Alarms",
        [line(key) for key in keys],
        floating=icon("add", partial(phone.open, "alarm", focus="time", key="")),
        count=len(keys),
        facts=(counted(Listing.of("alarm"), len(keys)),),
    )


def alarm(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["alarm"][key] if key else EMPTY
    now = draft(frame, record)
    saved = bool(key) and not changed(frame, record)

    def fact(name: str) -> Any:
        return facts_of("alarm", key, record, name) if saved else ()

    def buzz() -> None:
        frame["form"]["vibrate"] = not now["vibrate"]

    def save() -> None:
        phone.close()
        if key:
            record.update(now)
        phone.reveal(row_id(key or phone.add("alarm", now)))
        phone.toast("Saved")

    bar = [icon("save", save, enabled=not saved)]
    if key:
        bar.append(icon("delete", partial(phone.open, "delete", key=key, back=2)))
    return View(
        "Alarm" if key else "New",
        [
            field(phone, frame, "time", now["time"], time_of_day, fact("time")),
            field(phone, frame, "label", now["label"], facts=fact("label")),
            picked(phone, "days", now["days"], DAYS, fact("days")),
            switch("vibrate", "Vibrate", bool(now["vibrate"]), buzz, *fact("vibrate")),
        ],
        bar=bar,
    )


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    phone.close(args["back"] - 1)
    del phone.data["alarm"][args["key"]]
    phone.toast("Deleted")


def cities(phone: Phone, frame: Frame) -> View:
    records = phone.data["city"]
    keys = sorted(records, key=lambda key: str(records[key]["name"]))
    return View(
        "Cities",
        [
            row(
                row_id(key),
                str(records[key]["name"]),
                value=hours(int(records[key]["hours"])),
                facts=facts_of("city", key, records[key], "name", "hours"),
                hold=partial(phone.open, "remove", key=key),
            )
            for key in keys
        ],
        floating=icon("add", partial(phone.open, "more")),
        count=len(keys),
        facts=(counted(Listing.of("city"), len(keys)),),
    )


def more(phone: Phone, frame: Frame) -> View:
    have = {str(record["name"]) for record in phone.data["city"].values()}

    def add(name: str) -> None:
        phone.close()
        phone.reveal(row_id(phone.add("city", {"name": name, "hours": CITIES[name]})))

    names = [name for name in CITIES if name not in have]
    return View("Add city", [row(name.casefold(), name, partial(add, name)) for name in names])


def removed(phone: Phone, args: dict[str, Any]) -> None:
    del phone.data["city"][args["key"]]


def timer(phone: Phone, frame: Frame) -> View:
    record = phone.data["timer"]["main"]

    def run() -> None:
        record["on"] = not record["on"]

    minutes = draft(frame, {"minutes": str(record["minutes"])})["minutes"]

    def start() -> None:
        record["minutes"], record["on"] = int(minutes), True

    shown = facts_of("timer", "main", record, "on", "minutes")
    if record["on"]:
        body = [text("Running", f"{record['minutes']} min", *shown), button("stop", "Stop", run)]
    else:
        body = [
            field(phone, frame, "minutes", minutes, whole_number, shown[:1]),
            button("start", "Start", start),
        ]
    return View("Timer", body)


APP = App(
    "clock",
    "Clock",
    "#5e35b1",
    ("alarm", "city", "timer"),
    {
        "root": root,
        "alarm": alarm,
        "choose": choose,
        "delete": confirm("Delete alarm?", "Delete", deleted),
        "more": more,
        "remove": confirm("Remove city?", "Remove", removed),
    },
)
