"""Calendar: two weeks of days with their events."""

from __future__ import annotations

from functools import partial

from selfverify.agents.facts import Listing
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import Builder, choose, in_order, time_of_day
from selfverify_phone.system.records import Entry, Kind, add_icon, opens, search_icon
from selfverify_phone.system.widgets import View, Widget, counted, row, text

DAYS = tuple(f"May {day}" for day in range(12, 26))
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
REMIND = ("Never", "5 min", "15 min", "1 hour", "1 day")
EMPTY: Record = {"title": "", "day": DAYS[0], "time": "12:00", "place": "", "remind": "Never", "note": ""}
ENTRIES = (
    Entry("title"),
    Entry("time", check=time_of_day),
    Entry("place"),
    Entry("day", DAYS),
    Entry("remind", REMIND),
    Entry("note"),
)
EVENT = Kind("event", "title", leads=True, held="menu")


def on_day(phone: Phone, day: str) -> list[str]:
    """The keys of a day's events, the earliest first."""
    records = phone.data["event"]
    return in_order(records, "time", [key for key, record in records.items() if record["day"] == day])


def day_id(day: str) -> str:
    """The id of a day's line."""
    return f"d{day.split()[1]}"


def root(phone: Phone, frame: Frame) -> View:
    def of_day(day: str) -> Widget:
        number = len(on_day(phone, day))
        said = f"{number} event{'s' * (number != 1)}" if number else ""
        facts = (counted(Listing.of("event", "day", "=", day), number),)
        return row(day_id(day), day, opens(phone, "day", day=day), said, facts)

    add = add_icon(phone, "form", "title", key="", day=DAYS[0])
    return View("Calendar", [of_day(day) for day in DAYS], bar=[search_icon(phone)], floating=add)


def planned(phone: Phone, key: str, *attributes: str) -> Widget:
    record = phone.data["event"][key]
    value = " ".join(str(record[name]) for name in attributes if name != "day")
    return EVENT.line(phone, key, "title", *attributes, value=value)


def day(phone: Phone, frame: Frame) -> View:
    now = frame["args"]["day"]
    place = DAYS.index(now)

    def turn(by: int) -> None:
        frame["args"]["day"] = DAYS[max(0, min(place + by, len(DAYS) - 1))]
        frame["scroll"] = 0

    return EVENT.listed(
        now,
        [planned(phone, key, "time", "day") for key in on_day(phone, now)],
        *("day", "=", now),
        empty=text("No events", WEEK[place % 7]),
        floating=add_icon(phone, "form", "title", key="", day=now),
        swipes={"left": partial(turn, 1), "right": partial(turn, -1)},
    )


SCREENS: dict[str, Builder] = {
    "root": root,
    "day": day,
    "search": EVENT.search(),
    "event": EVENT.sheet("day", "time", "place", "remind", "note", day=""),
    "form": EVENT.form(EMPTY, *ENTRIES),
    "menu": EVENT.menu(day=""),
    "choose": choose,
    "delete": EVENT.erase(toast="Deleted"),
}
APP = App("calendar", "Calendar", "#c62828", ("event",), SCREENS)
