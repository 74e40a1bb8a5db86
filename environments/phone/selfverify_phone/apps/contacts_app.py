"""Contacts: people with their numbers."""

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
    in_order,
    keep,
    menu,
    picked,
    row_id,
    search_of,
    view,
)
from selfverify_phone.system.widgets import View, Widget, counted, icon, row, tab, text

GROUPS = ("None", "Family", "Friends", "Work")
EMPTY: Record = {"name": "", "phone": "", "company": "", "group": "None", "star": False, "note": ""}
TYPED = ("phone", "company", "note")


def line(phone: Phone, key: str, *attributes: str) -> Widget:
    record = phone.data["contact"][key]
    facts = facts_of("contact", key, record, "name", *attributes)
    hold = partial(phone.open, "menu", key=key)
    return row(
        row_id(key), str(record["name"]), partial(phone.open, "contact", key=key), facts=facts, hold=hold
    )


def root(phone: Phone, frame: Frame) -> View:
    stars = frame["form"].get("view") == "stars"
    records = phone.data["contact"]
    keys = [key for key in in_order(records, "name") if not stars or records[key]["star"]]
    listed = Listing.of("contact", "star", "=", "True") if stars else Listing.of("contact")
    return View(
        "Stars" if stars else "Contacts",
        [line(phone, key, *(["star"] if stars else [])) for key in keys],
        bar=[icon("search", partial(phone.open, "search", focus="query"))],
        tabs=[
            tab("all", "All", not stars, partial(view, phone, "all")),
            tab("stars", "Stars", stars, partial(view, phone, "stars")),
        ],
        floating=icon("add", partial(phone.open, "form", focus="name", key="")),
        count=len(keys),
        facts=(counted(listed, len(keys)),),
    )


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "contact", "name", partial(line, phone))


def contact(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["contact"][key]

    def star() -> None:
        record["star"] = not record["star"]

    shown = [(name, str(record[name])) for name in ("phone", "company", "group", "note")]
    return View(
        str(record["name"]),
        [
            text(name.capitalize(), value or "-", *facts_of("contact", key, record, name))
            for name, value in shown
        ],
        bar=[
            icon("edit", partial(phone.open, "form", key=key)),
            icon("star", star, on=bool(record["star"]), facts=facts_of("contact", key, record, "star")),
            icon("delete", partial(phone.open, "delete", key=key, back=2)),
        ],
        facts=facts_of("contact", key, record, "name"),
    )


def form(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["contact"][key] if key else EMPTY
    now = draft(frame, record)
    save = partial(keep, phone, "contact", key, now)
    return View(
        "Edit" if key else "New",
        [
            field(phone, frame, "name", now["name"]),
            *(field(phone, frame, name, now[name]) for name in TYPED[:2]),
            picked(phone, "group", now["group"], GROUPS),
            field(phone, frame, "note", now["note"]),
        ],
        bar=[icon("save", save, enabled=bool(now["name"]) and changed(frame, record))],
    )


def held(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    title = str(phone.data["contact"][key]["name"])
    return menu(
        phone,
        title,
        edit=partial(phone.open, "form", key=key),
        delete=partial(phone.open, "delete", key=key, back=1),
    )


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    phone.close(args["back"] - 1)
    del phone.data["contact"][args["key"]]
    phone.toast("Deleted")


APP = App(
    "contacts",
    "Contacts",
    "#1565c0",
    ("contact",),
    {
        "root": root,
        "search": search,
        "contact": contact,
        "form": form,
        "menu": held,
        "choose": choose,
        "delete": confirm("Delete contact?", "Delete", deleted),
    },
)
