"""Reader: books, their pages, bookmarks and options."""

from __future__ import annotations

from functools import partial
from typing import Any

from selfverify.agents.facts import Fact, Listing
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
    options_of,
    picked,
    row_id,
    search_of,
    view,
    whole_number,
)
from selfverify_phone.system.widgets import View, Widget, button, counted, icon, row, switch, tab, text

SHELVES = ("None", "Crime", "History", "Poems", "Science")
FONTS = ("Small", "Medium", "Large")
SPACING = ("Narrow", "Normal", "Wide")
EMPTY: Record = {
    "title": "", "author": "", "shelf": "None", "pages": 100, "page": 1, "done": False
}  # fmt: skip
SENTENCES = (
    "The rain had stopped when they came back to the house.",
    "Nobody had seen the garden since the old man died.",
    "She put the letter on the table and waited.",
    "In the morning the road was white with dust.",
    "He counted the stones again, and one was missing.",
    "The train was late, as it was every winter.",
    "There was a light in the tower, and then there was none.",
)


def root(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("view", "books")
    names = ("books", "marks", "options")
    made = {"books": books, "marks": marks, "options": options}[now](phone, frame)
    made.tabs = [tab(name, name.capitalize(), name == now, partial(view, phone, name)) for name in names]
    return made


def line(phone: Phone, key: str) -> Widget:
    record = phone.data["book"][key]
    tap = partial(phone.open, "book", key=key)
    return row(row_id(key), str(record["title"]), tap, facts=facts_of("book", key, record, "title"))


def books(phone: Phone, frame: Frame) -> View:
    records = phone.data["book"]
    keys = in_order(records, "title")
    return View(
        "Books",
        [line(phone, key) for key in keys],
        bar=[icon("search", partial(phone.open, "search", focus="query"))],
        floating=icon("add", partial(phone.open, "form", focus="title", key="")),
        count=len(keys),
        facts=(counted(Listing.of("book"), len(keys)),),
    )


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "book", "title", partial(line, phone))


def book(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["book"][key]

    def finish() -> None:
        record["done"] = not record["done"]

    def said(name: str) -> Widget:
        return text(name.capitalize(), str(record[name]) or "-", *facts_of("book", key, record, name))

    return View(
        str(record["title"]),
        [
            said("author"),
            said("shelf"),
            said("pages"),
            switch("done", "Done", bool(record["done"]), finish, *facts_of("book", key, record, "done")),
            button("read", "Read", partial(phone.open, "page", key=key)),
        ],
        bar=[
            icon("edit", partial(phone.open, "form", key=key)),
            icon("delete", partial(phone.open, "delete", key=key)),
        ],
        facts=facts_of("book", key, record, "title"),
    )


def form(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["book"][key] if key else EMPTY
    now = draft(frame, record)

    def save() -> None:
        for mark in phone.data["mark"].values():
            if key and mark["book"] == record["title"]:
                mark["book"] = now["title"]
        keep(phone, "book", key, now)

    return View(
        "Edit" if key else "New",
        [
            field(phone, frame, "title", now["title"]),
            field(phone, frame, "author", now["author"]),
            picked(phone, "shelf", now["shelf"], SHELVES),
        ],
        bar=[icon("save", save, enabled=bool(now["title"]) and changed(frame, record))],
    )


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    title = phone.data["book"].pop(args["key"])["title"]
    for key in [key for key, mark in phone.data["mark"].items() if mark["book"] == title]:
        del phone.data["mark"][key]
    phone.toast("Deleted")


def page(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["book"][key]
    now = int(record["page"])
    marked = [k for k, m in phone.data["mark"].items() if m["book"] == record["title"] and m["page"] == now]

    def turn(by: int) -> None:
        record["page"] = max(1, min(now + by, int(record["pages"])))

    def mark() -> None:
        if marked:
            del phone.data["mark"][marked[0]]
        else:
            phone.add("mark", {"book": record["title"], "page": now})

    facts: tuple[Fact, ...] = ()
    for found_key in marked[:1]:
        facts = facts_of("mark", found_key, phone.data["mark"][found_key], "book", "page")
    start = (int(key) * 3 + now) % len(SENTENCES)
    said = " ".join(SENTENCES[(start + i) % len(SENTENCES)] for i in range(2))
    return View(
        str(record["title"]),
        [
            text("", said, span=4),
            text("Page", f"{now} of {record['pages']}", *facts_of("book", key, record, "page", "pages")),
        ],
        bar=[
            icon("mark", mark, on=bool(marked), facts=facts),
            icon("goto", partial(phone.open, "goto", focus="page", key=key)),
        ],
        facts=facts_of("book", key, record, "title"),
        swipes={"left": partial(turn, 1), "right": partial(turn, -1)},
    )


def goto(phone: Phone, frame: Frame) -> View:
    record = phone.data["book"][frame["args"]["key"]]
    typed = str(draft(frame, {"page": ""})["page"])
    there = typed != "" and int(typed) <= int(record["pages"])

    def go() -> None:
        phone.close()
        record["page"] = int(typed)

    body = [field(phone, frame, "page", typed, whole_number), button("go", "Go", go, enabled=there)]
    return View("Go to page", body, style="dialog")


def marks(phone: Phone, frame: Frame) -> View:
    records = phone.data["mark"]
    return View(
        "Marks",
        [
            row(
                row_id(key),
                str(record["book"]),
                value=f"page {record['page']}",
                facts=facts_of("mark", key, record, "book", "page"),
                hold=partial(phone.open, "remove", key=key),
            )
            for key, record in records.items()
        ]
        or [text("No marks")],
        count=len(records),
        facts=(counted(Listing.of("mark"), len(records)),),
    )


def removed(phone: Phone, args: dict[str, Any]) -> None:
    del phone.data["mark"][args["key"]]


def options(phone: Phone, frame: Frame) -> View:
    records = phone.data["reading"]

    def night() -> None:
        records["night"]["value"] = not records["night"]["value"]

    return View(
        "Options",
        [
            switch("night", "Night", bool(records["night"]["value"]), night,
                   *facts_of("reading", "night", records["night"], "value")),
            row("font", "Font", partial(phone.open, "option", name="font")),
            row("spacing", "Spacing", partial(phone.open, "option", name="spacing")),
        ],
    )  # fmt: skip


def option(phone: Phone, frame: Frame) -> View:
    name = frame["args"]["name"]
    record = phone.data["reading"][name]

    def pick(value: str) -> None:
        phone.close()
        record["value"] = value

    facts = facts_of("reading", name, record, "value")
    values = {"font": FONTS, "spacing": SPACING}[name]
    return View(name.capitalize(), options_of(values, str(record["value"]), pick, facts), style="dialog")


APP = App(
    "reader",
    "Reader",
    "#6d4c41",
    ("book", "mark", "reading"),
    {
        "root": root,
        "search": search,
        "book": book,
        "form": form,
        "choose": choose,
        "delete": confirm("Delete book?", "Delete", deleted, back=2),
        "page": page,
        "goto": goto,
        "remove": confirm("Remove mark?", "Remove", removed),
        "option": option,
    },
)
