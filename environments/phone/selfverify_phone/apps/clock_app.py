"""Clock: alarms, cities and a timer."""

from __future__ import annotations

from functools import partial

from selfverify.agents.facts import Fact
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import (
    Builder,
    changed,
    choose,
    draft,
    field,
    in_order,
    row_id,
    time_of_day,
    whole_number,
)
from selfverify_phone.system.records import Entry, Kind, add_icon, delete_icon, flip, tabbed
from selfverify_phone.system.widgets import View, Widget, button, icon, row, switch, text

DAYS = ("Once", "Daily", "Weekdays", "Weekend")
EMPTY: Record = {"time": "08:00", "on": True, "label": "", "days": "Once", "vibrate": True}
ENTRIES = (Entry("time", check=time_of_day), Entry("label"), Entry("days", DAYS))
CITIES = {
    "Berlin": 0, "Cairo": 1, "Delhi": 4, "Lima": -7, "London": -1, "Moscow": 1, "Oslo": 0, "Paris": 0,
    "Rome": 0, "Seoul": 7, "Sydney": 8, "Tokyo": 7,
}  # fmt: skip
"""Hours ahead of the phone's own time."""
ALARM, TIMER = Kind("alarm", "time", leads=True, held="delete"), Kind("timer")
CITY = Kind("city", "name", held="remove")


def alarms(phone: Phone, frame: Frame) -> View:
    def ringing(key: str) -> Widget:
        part = ALARM.switch(phone, key, "on", f"s{key}", "")
        return ALARM.line(phone, key, "time", part=part)

    lines = [ringing(key) for key in in_order(phone.data["alarm"], "time")]
    return ALARM.listed("Alarms", lines, floating=add_icon(phone, "alarm", "time", key=""))


def alarm(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["alarm"][key] if key else EMPTY
    now = draft(frame, record)
    saved = bool(key) and not changed(frame, record)

    def shown(name: str) -> tuple[Fact, ...]:
        return ALARM.facts(phone, key, name) if saved else ()

    def buzz() -> None:
        frame["form"]["vibrate"] = not now["vibrate"]

    def save() -> None:
        ALARM.keep(phone, key, now)
        if key:
            phone.reveal(row_id(key))

    return View(
        "Alarm" if key else "New",
        [
            *(entry.widget(phone, frame, now[entry.name], shown(entry.name)) for entry in ENTRIES),
            switch("vibrate", "Vibrate", bool(now["vibrate"]), buzz, *shown("vibrate")),
        ],
        bar=[icon("save", save, enabled=not saved), *([delete_icon(phone, key, back=2)] if key else [])],
    )


def cities(phone: Phone, frame: Frame) -> View:
    def ahead(key: str) -> Widget:
        hours = f"{phone.data['city'][key]['hours']:+} h"
        return CITY.line(phone, key, "name", "hours", value=hours)

    lines = [ahead(key) for key in in_order(phone.data["city"], "name")]
    return CITY.listed("Cities", lines, floating=add_icon(phone, "more"))


def more(phone: Phone, frame: Frame) -> View:
    have = {str(record["name"]) for record in phone.data["city"].values()}

    def add(name: str) -> None:
        phone.close()
        phone.reveal(row_id(phone.add("city", {"name": name, "hours": CITIES[name]})))

    names = [name for name in CITIES if name not in have]
    return View("Add city", [row(name.casefold(), name, partial(add, name)) for name in names])


def timer(phone: Phone, frame: Frame) -> View:
    record = phone.data["timer"]["main"]
    minutes = draft(frame, {"minutes": str(record["minutes"])})["minutes"]

    def start() -> None:
        record["minutes"], record["on"] = int(minutes), True

    shown = TIMER.facts(phone, "main", "on", "minutes")
    if record["on"]:
        stop = button("stop", "Stop", partial(flip, record, "on"))
        return View("Timer", [text("Running", f"{record['minutes']} min", *shown), stop])
    typed = field(phone, frame, "minutes", minutes, whole_number, shown[:1])
    return View("Timer", [typed, button("start", "Start", start)])


SCREENS: dict[str, Builder] = {
    "root": tabbed({"alarms": alarms, "cities": cities, "timer": timer}),
    "alarm": alarm,
    "choose": choose,
    "delete": ALARM.erase(toast="Deleted"),
    "more": more,
    "remove": CITY.erase("Remove"),
}
APP = App("clock", "Clock", "#5e35b1", ("alarm", "city", "timer"), SCREENS)
