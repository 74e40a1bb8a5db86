"""Tasks and questions about books."""

from __future__ import annotations

from selfverify.agents.goals import Has, Listed
from selfverify_phone.apps.reader_app import EMPTY, FONTS, SHELVES, SPACING
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Field, Template, Thing, only
from selfverify_phone.templates.patterns import add, choose, delete, edit, in_any_order, in_turn, switch
from selfverify_phone.templates.questions import ask, more, number, same_value
from selfverify_phone.templates.ways import BACK, hold, swipe, tap, write

BOOK, OTHER = Thing("book", {"title": "title"}), Thing("book", {"other": "title"})
MARK = Thing("mark", {"title": "book"}, [tap("marks")], lambda world, key: [hold(f"r{key}")])
FONT, SPACED, NIGHT = (
    Thing("reading", lead=[tap("options")], way=lambda world, name: [], draw=only(name))
    for name in ("font", "spacing", "night")
)
UNMARK, DONE = delete(MARK, "remove"), switch(BOOK, "done", True)
SET_FONT, TURN_NIGHT = choose(FONT, "value", FONTS), switch(NIGHT, "value", "other")


def new_title(world: World) -> str:
    return str(world.unlike("book", "title", lambda: world.one(words.BOOKS)))


def page(world: World) -> Drawn:
    """A page that is far from where the book is open."""
    key = BOOK.drawn(world)
    record = world.get("book", key)
    near = range(int(record["page"]) - 3, int(record["page"]) + 4)
    number = world.one(range(1, int(record["pages"]) + 1), *near)
    return Drawn(
        {"page": str(number), **BOOK.said(world, key)},
        [BOOK.has(world, key, {"page": number})],
        [tap(f"r{key}"), tap("read"), tap("goto"), write(str(number)), tap("go")],
    )


def next_page(world: World) -> Drawn:
    key = BOOK.drawn(world)
    number = int(world.get("book", key)["page"]) + 1
    needs = [BOOK.has(world, key, {"page": number})]
    return Drawn(BOOK.said(world, key), needs, [tap(f"r{key}"), tap("read"), swipe("left")])


def mark(world: World) -> Drawn:
    """A mark where a book has none."""
    turned = page(world)
    title, marks = turned.says["title"], world.data["mark"]
    for other in [key for key, record in marks.items() if record["book"] == title]:
        del marks[other]
    needs = [Has(kind="mark", match={"book": title, "page": int(turned.says["page"])}, new=True)]
    return Drawn(turned.says, needs, [*turned.solve, tap("mark")])


def how_many(world: World) -> Drawn:
    marks = world.data["mark"]
    for key in list(marks)[world.rng.randint(1, 4) :]:
        del marks[key]
    return Drawn({}, [Listed(kind="mark")], [tap("marks")], answer=number(len(marks)))


TASKS: dict[str, Template] = {
    "page": Template(page).asked(
        "Go to page {page} of {title}.",
        "Open {title} at page {page}.",
        "Turn to page {page} in the book {title}.",
    ),
    "next-page": Template(next_page).asked(
        "Go to the next page of {title}.",
        "Turn one page further in {title}.",
        "Read on in {title}: turn the page.",
    ),
    "mark": Template(mark).asked(
        "Mark page {page} of {title}.",
        "Set a mark at page {page} in {title}.",
        "Put a mark into the book {title}, page {page}.",
    ),
    "unmark": UNMARK.asked(
        "Remove the mark in {title}.", "Delete the mark of the book {title}.", "Take the mark out of {title}."
    ),
    "done": DONE.asked(
        "Mark {title} as done.", "I have read {title}: it is done.", "Set the book {title} to done."
    ),
    "shelf": edit(BOOK, Field("shelf", SHELVES, chosen=True)).asked(
        "Put {title} on the shelf {shelf}.",
        "Move the book {title} to the shelf {shelf}.",
        "Set the shelf of {title} to {shelf}.",
    ),
    "add": add(BOOK, new_title, EMPTY, Field("author", words.AUTHORS)).asked(
        "Add the book {title} by {author}.",
        "Put {title}, author {author}, into the reader.",
        "Create the book {title} with the author {author}.",
    ),
    "delete": delete(BOOK, "delete", "delete", searched=True).asked_in_tests(
        "Delete the book {title}.",
        "Remove {title} from the reader.",
        "I do not need {title} any more: delete the book.",
    ),
    "font": SET_FONT.asked(
        "Set the font of the reader to {value}.", "Change the font to {value}.", "Read with a {value} font."
    ),
    "spacing": choose(SPACED, "value", SPACING).asked(
        "Set the spacing of the reader to {value}.",
        "Change the spacing to {value}.",
        "Read with {value} spacing.",
    ),
    "night": TURN_NIGHT.asked(
        "Turn night {state} in the reader.", "Switch night {state}.", "The reader should have night {state}."
    ),
    "done-and-night": in_turn(DONE, TURN_NIGHT, BACK).asked(
        "Mark {title} as done and turn night {state}.",
        "Switch night {state}; I have read {title}, it is done.",
        "Set the book {title} to done, and night {state}.",
    ),
    "unmark-and-font": in_turn(UNMARK, SET_FONT).asked_in_tests(
        "Remove the mark in {title} and set the font to {value}.",
        "Set the font to {value}, and delete the mark of {title}.",
        "The mark in {title} must go; font {value}.",
    ),
    "done-two": in_any_order(DONE, switch(OTHER, "done", True)).asked(
        "Mark {title} and {other} as done.",
        "I have read {title} and {other}: they are done.",
        "Set the books {title} and {other} to done.",
    ),
    "ask-author": ask(BOOK, "author", "text", words.AUTHORS).asked(
        "Who wrote {title}?", "Who is the author of {title}?", "Which author has the book {title}?"
    ),
    "ask-page": ask(BOOK, "page", "text", (), tap("read")).asked(
        "At which page is {title} open?",
        "On which page am I in {title}?",
        "How far have I read {title}? The page.",
    ),
    "ask-marks": Template(how_many, "query").asked(
        "How many marks are there?", "How many marks have I set?", "Count the marks in my books."
    ),
    "ask-longer": more(BOOK, OTHER, "pages", instead=120).asked(
        "Which book has more pages, {title} or {other}?",
        "Is {title} or {other} longer?",
        "{title} or {other}: which is the longer book?",
    ),
    "ask-same-author": same_value(BOOK, OTHER, "author").asked_in_tests(
        "Are {title} and {other} by the same author?",
        "Did one author write {title} and {other}?",
        "Is the author of {title} also that of {other}?",
    ),
}
