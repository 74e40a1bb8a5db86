"""Questions about books."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.reader_tasks import OPEN, book
from selfverify_phone.templates.ways import BACK, either, tap

SHELF = Shelf("reader")


@SHELF.query("Who wrote {title}?", "Who is the author of {title}?", "Which author has the book {title}?")
def ask_author(world: World) -> Drawn:
    key, title = book(world)
    author = str(world.get("book", key)["author"])
    return Drawn(
        {"title": title},
        [Has(kind="book", match={"title": title}, values={"author": author})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(value=author, others=tuple(name for name in words.AUTHORS if name != author)),
    )


@SHELF.query(
    "At which page is {title} open?",
    "On which page am I in {title}?",
    "How far have I read {title}? The page.",
)
def ask_page(world: World) -> Drawn:
    key, title = book(world)
    number = int(world.get("book", key)["page"])
    return Drawn(
        {"title": title},
        [Has(kind="book", match={"title": title}, values={"page": number})],
        [OPEN, tap(f"r{key}"), tap("read")],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query("How many marks are there?", "How many marks have I set?", "Count the marks in my books.")
def ask_marks(world: World) -> Drawn:
    for key in list(world.data["mark"])[world.rng.randint(1, 4) :]:
        del world.data["mark"][key]
    return Drawn(
        {},
        [Listed(kind="mark")],
        [OPEN, tap("marks")],
        answer=Answer(form="number", value=str(len(world.data["mark"]))),
    )


@SHELF.query(
    "Which book has more pages, {title} or {other}?",
    "Is {title} or {other} longer?",
    "{title} or {other}: which is the longer book?",
    exhibits=2,
)
def ask_longer(world: World) -> Drawn:
    (key, title), (second, other) = book(world), book(world)
    if world.get("book", key)["pages"] == world.get("book", second)["pages"]:
        world.get("book", key)["pages"] = 120
    pages = {k: int(world.get("book", k)["pages"]) for k in (key, second)}
    names = {key: title, second: other}
    more, less = sorted(pages, key=lambda k: -pages[k])
    return Drawn(
        {"title": title, "other": other},
        [Has(kind="book", match={"title": names[k]}, values={"pages": pages[k]}) for k in pages],
        [OPEN, either([tap(f"r{key}"), BACK, tap(f"r{second}")], [tap(f"r{second}"), BACK, tap(f"r{key}")])],
        answer=Answer(value=names[more], others=(names[less],)),
    )


@SHELF.query(
    "Are {title} and {other} by the same author?",
    "Did one author write {title} and {other}?",
    "Is the author of {title} also that of {other}?",
    exhibits=2,
    held_out=True,
)
def ask_same_author(world: World) -> Drawn:
    (key, title), (second, other) = book(world), book(world)
    author = str(world.get("book", key)["author"])
    if world.flip():
        world.get("book", second)["author"] = author
    theirs = str(world.get("book", second)["author"])
    return Drawn(
        {"title": title, "other": other},
        [
            Has(kind="book", match={"title": title}, values={"author": author}),
            Has(kind="book", match={"title": other}, values={"author": theirs}),
        ],
        [OPEN, either([tap(f"r{key}"), BACK, tap(f"r{second}")], [tap(f"r{second}"), BACK, tap(f"r{key}")])],
        answer=Answer(form="yes-no", value="yes" if author == theirs else "no"),
    )
