"""Calendar: two weeks of days with their events."""

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
    keep,
    menu,
    picked,
    row_id,
    search_of,
    time_of_day,
)
from selfverify_phone.system.widgets import View, Widget, counted, icon, row, text

DAYS = tuple(f"May {day}" for day in range(12, 26))
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
REMIND = ("Never", "5 min", "15 min", "1 hour", "1 day")
EMPTY: Record = {"title": "", "day": DAYS[0], "time": "12:00", "place": "", "remind": "Never", "note": ""}


def on_day(phone: Phone, day: str) -> list[str]:
    """The keys of a day's events, the earliest first."""
    records = phone.data["event"]
    keys = [key for key, record in records.items() if record["day"] == day]
    return sorted(keys, key=lambda key: (str(records[key]["time"]), int(key)))


def day_id(day: str) -> str:
    """The id of a day's line."""
    return f"d{day.split()[1]}"


def root(phone: Phone, frame: Frame) -> View:
    def line(day: str) -> Widget:
        number = len(on_day(phone, day))
        said = f"{number} event{'s' * (number != 1)}" if number else ""
        facts = (counted(Listing.of("event", "day", "=", day), number),)
        return row(day_id(day), day, partial(phone.open, "day", day=day), said, facts)

    return View(
        "Calendar",
        [line(day) for day in DAYS],
        bar=[icon("search", partial(phone.open, "search", focus="query"))],
        floating=icon("add", partial(phone.open, "form", focus="title", key="", day=DAYS[0])),
    )


def line(phone: Phone, key: str, *attributes: str) -> Widget:
    record = phone.data["event"][key]
    facts = facts_of("event", key, record, "title", *attributes)
    said = " ".join(str(record[name]) for name in attributes if name != "day")
    return row(
        row_id(key),
        str(record["title"]),
        partial(phone.open, "event", key=key),
        said,
        facts,
        hold=partial(phone.open, "menu", key=key),
    )


def day(phone: Phone, frame: Frame) -> View:
    now = frame["args"]["day"]
    keys = on_day(phone, now)
    place = DAYS.index(now)

    def turn(by: int) -> None:
        frame["args"]["day"] = DAYS[max(0, min(place + by, len(DAYS) - 1))]
        frame["scroll"] = 0

    return View(
        now,
        [line(phone, key, "time", "day") for key in keys] or [text("No events", WEEK[place % 7])],
        floating=icon("add", partial(phone.open, "form", focus="title", key="", day=now)),
        count=len(keys),
        facts=(counted(Listing.of("event", "day", "=", now), len(keys)),),
        swipes={"left": partial(turn, 1), "right": partial(turn, -1)},
    )


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "event", "title", partial(line, phone))


def event(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["event"][key]
    names = ("day", "time", "place", "remind", "note")
    return View(
        str(record["title"]),
        [
            text(name.capitalize(), str(record[name]) or "-", *facts_of("event", key, record, name))
            for name in names
        ],
        bar=[
            icon("edit", partial(phone.open, "form", key=key, day="")),
            icon("delete", partial(phone.open, "delete", key=key, back=2)),
        ],
        facts=facts_of("event", key, record, "title"),
    )


def form(phone: Phone, frame: Frame) -> View:
    key, on = frame["args"]["key"], frame["args"]["day"]
    record = phone.data["event"][key] if key else {**EMPTY, "day": on}
    now = draft(frame, record)
    save = partial(keep, phone, "event", key, now)
    return View(
        "Edit" if key else "New",
        [
            field(phone, frame, "title", now["title"]),
            field(phone, frame, "time", now["time"], time_of_day),
            field(phone, frame, "place", now["place"]),
            picked(phone, "day", now["day"], DAYS),
            picked(phone, "remind", now["remind"], REMIND),
            field(phone, frame, "note", now["note"]),
        ],
        bar=[icon("save", save, enabled=bool(now["title"]) and changed(frame, record))],
    )


def held(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    return menu(
        phone,
        str(phone.data["event"][key]["title"]),
        edit=partial(phone.open, "form", key=key, day=""),
        delete=partial(phone.open, "delete", key=key, back=1),
    )


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    phone.close(args["back"] - 1)
    del phone.data["event"][args["key"]]
    phone.toast("Deleted")


APP = App(
    "calendar",
    "Calendar",
    "#c62828",
    ("event",),
    {
        "root": root,
        "day": day,
        "search": search,
        "event": event,
        "form": form,
        "menu": held,
        "choose": choose,
        "delete": confirm("Delete event?", "Delete", deleted),
    },
)
