"""Tasks about books."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.reader_app import FONTS, SHELVES, SPACING
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import BACK, Step, either, hold, launch, swipe, tap, write

SHELF = Shelf("reader")
OPEN = launch("reader")


def book(world: World) -> tuple[str, str]:
    """A book's key and title."""
    key = world.pick("book")
    return key, str(world.get("book", key)["title"])


def turned(world: World, key: str) -> int:
    """A page that is far from where the book is open."""
    record = world.get("book", key)
    near = range(int(record["page"]) - 3, int(record["page"]) + 4)
    return world.one(range(1, int(record["pages"]) + 1), *near)


def reach(page: int) -> list[Step]:
    """From a page of a book to another."""
    return [tap("goto"), write(str(page)), tap("go")]


@SHELF.operation(
    "Go to page {page} of {title}.",
    "Open {title} at page {page}.",
    "Turn to page {page} in the book {title}.",
)
def page(world: World) -> Drawn:
    key, title = book(world)
    number = turned(world, key)
    return Drawn(
        {"page": str(number), "title": title},
        [Has(kind="book", match={"title": title}, values={"page": number})],
        [OPEN, tap(f"r{key}"), tap("read"), *reach(number)],
    )


@SHELF.operation(
    "Go to the next page of {title}.",
    "Turn one page further in {title}.",
    "Read on in {title}: turn the page.",
)
def next_page(world: World) -> Drawn:
    key, title = book(world)
    number = int(world.get("book", key)["page"]) + 1
    return Drawn(
        {"title": title},
        [Has(kind="book", match={"title": title}, values={"page": number})],
        [OPEN, tap(f"r{key}"), tap("read"), swipe("left")],
    )


@SHELF.operation(
    "Mark page {page} of {title}.",
    "Set a mark at page {page} in {title}.",
    "Put a mark into the book {title}, page {page}.",
)
def mark(world: World) -> Drawn:
    key, title = book(world)
    number = turned(world, key)
    for other in [k for k, r in world.data["mark"].items() if r["book"] == title]:
        del world.data["mark"][other]
    return Drawn(
        {"page": str(number), "title": title},
        [Has(kind="mark", match={"book": title, "page": number}, new=True)],
        [OPEN, tap(f"r{key}"), tap("read"), *reach(number), tap("mark")],
    )


@SHELF.operation(
    "Remove the mark in {title}.",
    "Delete the mark of the book {title}.",
    "Take the mark out of {title}.",
)
def unmark(world: World) -> Drawn:
    key = world.pick("mark")
    title = str(world.get("mark", key)["book"])
    return Drawn(
        {"title": title},
        [Absent(kind="mark", key=key, match={"book": title})],
        [OPEN, tap("marks"), hold(f"r{key}"), tap("remove")],
    )


def finishing(world: World, done: bool) -> Drawn:
    key, title = book(world)
    world.get("book", key)["done"] = not done
    return Drawn(
        {"title": title},
        [Has(kind="book", match={"title": title}, values={"done": done})],
        [OPEN, tap(f"r{key}"), tap("done")],
    )


@SHELF.operation("Mark {title} as done.", "I have read {title}: it is done.", "Set the book {title} to done.")
def done(world: World) -> Drawn:
    return finishing(world, True)


@SHELF.operation(
    "Put {title} on the shelf {shelf}.",
    "Move the book {title} to the shelf {shelf}.",
    "Set the shelf of {title} to {shelf}.",
)
def shelf(world: World) -> Drawn:
    key, title = book(world)
    new = world.one(SHELVES, str(world.get("book", key)["shelf"]))
    return Drawn(
        {"title": title, "shelf": new},
        [Has(kind="book", match={"title": title}, values={"shelf": new})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("shelf"), tap(new.casefold()), tap("save")],
    )


@SHELF.operation(
    "Add the book {title} by {author}.",
    "Put {title}, author {author}, into the reader.",
    "Create the book {title} with the author {author}.",
    hidden=True,
)
def add(world: World) -> Drawn:
    title = str(world.unlike("book", "title", lambda: world.one(words.BOOKS)))
    author, key = world.one(words.AUTHORS), world.next("book")
    return Drawn(
        {"title": title, "author": author},
        [Has(kind="book", match={"title": title}, values={"author": author}, new=True)],
        [OPEN, tap("add"), write(title), tap("author"), write(author), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Delete the book {title}.",
    "Remove {title} from the reader.",
    "I do not need {title} any more: delete the book.",
    hidden=True,
    held_out=True,
)
def delete(world: World) -> Drawn:
    key, title = book(world)
    return Drawn(
        {"title": title},
        [Absent(kind="book", key=key, match={"title": title})],
        [OPEN, tap(f"r{key}"), tap("delete"), tap("delete")],
        [tap("search"), write(title)],
    )


def option(world: World, name: str, values: tuple[str, ...]) -> Drawn:
    wanted = world.one(values, str(world.get("reading", name)["value"]))
    return Drawn(
        {"value": wanted},
        [Has(kind="reading", key=name, values={"value": wanted})],
        [OPEN, tap("options"), tap(name), tap(wanted.casefold())],
        [tap(name)],
    )


@SHELF.operation(
    "Set the font of the reader to {value}.",
    "Change the font to {value}.",
    "Read with a {value} font.",
    hidden=True,
)
def font(world: World) -> Drawn:
    return option(world, "font", FONTS)


@SHELF.operation(
    "Set the spacing of the reader to {value}.",
    "Change the spacing to {value}.",
    "Read with {value} spacing.",
    hidden=True,
)
def spacing(world: World) -> Drawn:
    return option(world, "spacing", SPACING)


@SHELF.operation(
    "Turn night {state} in the reader.", "Switch night {state}.", "The reader should have night {state}."
)
def night(world: World) -> Drawn:
    wanted = not world.get("reading", "night")["value"]
    return Drawn(
        {"state": "on" if wanted else "off"},
        [Has(kind="reading", key="night", values={"value": wanted})],
        [OPEN, tap("options"), tap("night")],
    )


@SHELF.operation(
    "Mark {title} as done and turn night {state}.",
    "Switch night {state}; I have read {title}, it is done.",
    "Set the book {title} to done, and night {state}.",
    exhibits=2,
)
def done_and_night(world: World) -> Drawn:
    drawn = finishing(world, True)
    wanted = not world.get("reading", "night")["value"]
    return Drawn(
        {**drawn.says, "state": "on" if wanted else "off"},
        [*drawn.needs, Has(kind="reading", key="night", values={"value": wanted})],
        [*drawn.solve, BACK, tap("options"), tap("night")],
    )


@SHELF.operation(
    "Remove the mark in {title} and set the font to {value}.",
    "Set the font to {value}, and delete the mark of {title}.",
    "The mark in {title} must go; font {value}.",
    hidden=True,
    exhibits=2,
    held_out=True,
)
def unmark_and_font(world: World) -> Drawn:
    drawn, wanted = unmark(world), option(world, "font", FONTS)
    return Drawn(
        {**drawn.says, **wanted.says},
        [*drawn.needs, *wanted.needs],
        [*drawn.solve, *wanted.solve[1:]],
        wanted.prove,
    )


@SHELF.operation(
    "Mark {title} and {other} as done.",
    "I have read {title} and {other}: they are done.",
    "Set the books {title} and {other} to done.",
    exhibits=2,
)
def done_two(world: World) -> Drawn:
    found = [book(world) for _ in range(2)]
    for key, _ in found:
        world.get("book", key)["done"] = False
    one, two = ([tap(f"r{key}"), tap("done")] for key, _ in found)
    return Drawn(
        {"title": found[0][1], "other": found[1][1]},
        [Has(kind="book", match={"title": title}, values={"done": True}) for _, title in found],
        [OPEN, either([*one, BACK, *two], [*two, BACK, *one])],
    )
