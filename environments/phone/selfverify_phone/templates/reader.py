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
    "page": Template(page),
    "next-page": Template(next_page),
    "mark": Template(mark),
    "unmark": UNMARK,
    "done": DONE,
    "shelf": edit(BOOK, Field("shelf", SHELVES, chosen=True)),
    "add": add(BOOK, new_title, EMPTY, Field("author", words.AUTHORS)),
    "delete": delete(BOOK, "delete", "delete", searched=True).kept_for_tests(),
    "font": SET_FONT,
    "spacing": choose(SPACED, "value", SPACING),
    "night": TURN_NIGHT,
    "done-and-night": in_turn(DONE, TURN_NIGHT, BACK),
    "unmark-and-font": in_turn(UNMARK, SET_FONT).kept_for_tests(),
    "done-two": in_any_order(DONE, switch(OTHER, "done", True)),
    "ask-author": ask(BOOK, "author", "text", words.AUTHORS),
    "ask-page": ask(BOOK, "page", "text", (), tap("read")),
    "ask-marks": Template(how_many, "query"),
    "ask-longer": more(BOOK, OTHER, "pages", instead=120),
    "ask-same-author": same_value(BOOK, OTHER, "author").kept_for_tests(),
}
