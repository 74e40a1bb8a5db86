"""Reader: books, their pages, bookmarks and options."""

from __future__ import annotations

from functools import partial

from selfverify.agents.facts import Fact
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import Builder, choose, draft, field, in_order, whole_number
from selfverify_phone.system.records import (
    Entry,
    Kind,
    add_icon,
    delete_icon,
    edit_icon,
    opens,
    search_icon,
    tabbed,
)
from selfverify_phone.system.widgets import View, Widget, button, icon, row, text

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
BOOK, MARK, READING = Kind("book", "title", leads=True), Kind("mark", held="remove"), Kind("reading")


def books(phone: Phone, frame: Frame) -> View:
    lines = [BOOK.line(phone, key, "title") for key in in_order(phone.data["book"], "title")]
    add = add_icon(phone, "form", "title", key="")
    return BOOK.listed("Books", lines, bar=[search_icon(phone)], floating=add)


def book(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    body = [
        *(BOOK.said(phone, key, name) for name in ("author", "shelf", "pages")),
        BOOK.switch(phone, key, "done", "done", "Done"),
        button("read", "Read", opens(phone, "page", key=key)),
    ]
    return BOOK.page(phone, key, body, bar=[edit_icon(phone, key), delete_icon(phone, key)])


def marks_of(phone: Phone, book: Record) -> list[str]:
    """The keys of a book's marks."""
    return [key for key, mark in phone.data["mark"].items() if mark["book"] == book["title"]]


def marks_renamed(phone: Phone, record: Record, now: Record) -> None:
    for key in marks_of(phone, record):
        phone.data["mark"][key]["book"] = now["title"]


def without_marks(phone: Phone, record: Record) -> None:
    for key in marks_of(phone, record):
        del phone.data["mark"][key]


def reading(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record, marks = phone.data["book"][key], phone.data["mark"]
    now = int(record["page"])
    marked = [mark for mark in marks_of(phone, record) if marks[mark]["page"] == now]

    def turn(by: int) -> None:
        record["page"] = max(1, min(now + by, int(record["pages"])))

    def mark() -> None:
        if marked:
            del marks[marked[0]]
        else:
            phone.add("mark", {"book": record["title"], "page": now})

    facts: tuple[Fact, ...] = MARK.facts(phone, marked[0], "book", "page") if marked else ()
    start = (int(key) * 3 + now) % len(SENTENCES)
    sentences = " ".join(SENTENCES[(start + i) % len(SENTENCES)] for i in range(2))
    shown = BOOK.facts(phone, key, "page", "pages")
    return BOOK.page(
        phone,
        key,
        [text("", sentences, span=4), text("Page", f"{now} of {record['pages']}", *shown)],
        bar=[
            icon("mark", mark, on=bool(marked), facts=facts),
            icon("goto", opens(phone, "goto", focus="page", key=key)),
        ],
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
    def marked(key: str, record: Record) -> Widget:
        return MARK.line(phone, key, "book", "page", value=f"page {record['page']}")

    lines = [marked(key, record) for key, record in phone.data["mark"].items()]
    return MARK.listed("Marks", lines, empty=text("No marks"))


def options(phone: Phone, frame: Frame) -> View:
    night = READING.switch(phone, "night", "value", "night", "Night")
    others = [row(name, name.capitalize(), opens(phone, "option", name=name)) for name in ("font", "spacing")]
    return View("Options", [night, *others])


def option(phone: Phone, frame: Frame) -> View:
    name = frame["args"]["name"]
    values = {"font": FONTS, "spacing": SPACING}[name]
    return READING.choices(phone, name.capitalize(), name, "value", values)


ENTRIES = (Entry("title"), Entry("author"), Entry("shelf", SHELVES))
SCREENS: dict[str, Builder] = {
    "root": tabbed({"books": books, "marks": marks, "options": options}),
    "search": BOOK.search(),
    "book": book,
    "form": BOOK.form(EMPTY, *ENTRIES, first=marks_renamed),
    "choose": choose,
    "delete": BOOK.erase(back=2, toast="Deleted", after=without_marks),
    "page": reading,
    "goto": goto,
    "remove": MARK.erase("Remove"),
    "option": option,
}
APP = App("reader", "Reader", "#6d4c41", ("book", "mark", "reading"), SCREENS)
