"""Contacts: people with their numbers."""

from __future__ import annotations

from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import Builder, choose, in_order
from selfverify_phone.system.records import Entry, Kind, add_icon, search_icon, tabs
from selfverify_phone.system.widgets import View

GROUPS = ("None", "Family", "Friends", "Work")
EMPTY: Record = {"name": "", "phone": "", "company": "", "group": "None", "star": False, "note": ""}
ENTRIES = (Entry("name"), Entry("phone"), Entry("company"), Entry("group", GROUPS), Entry("note"))
CONTACT = Kind("contact", "name", leads=True, held="menu")


def root(phone: Phone, frame: Frame) -> View:
    stars = frame["form"].get("view") == "stars"
    records = phone.data["contact"]
    keys = [key for key in in_order(records, "name") if not stars or records[key]["star"]]
    return CONTACT.listed(
        "Stars" if stars else "Contacts",
        [CONTACT.line(phone, key, *(("name", "star") if stars else ("name",))) for key in keys],
        *(("star", "=", "True") if stars else ()),
        bar=[search_icon(phone)],
        tabs=tabs(phone, ("all", "stars"), "stars" if stars else "all"),
        floating=add_icon(phone, "form", "name", key=""),
    )


SCREENS: dict[str, Builder] = {
    "root": root,
    "search": CONTACT.search(),
    "contact": CONTACT.sheet("phone", "company", "group", "note", flag="star"),
    "form": CONTACT.form(EMPTY, *ENTRIES),
    "menu": CONTACT.menu(),
    "choose": choose,
    "delete": CONTACT.erase(toast="Deleted"),
}
APP = App("contacts", "Contacts", "#1565c0", ("contact",), SCREENS)
