"""Questions about people and their numbers."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.contacts_tasks import OPEN, someone
from selfverify_phone.templates.ways import BACK, either, tap, write

SHELF = Shelf("contacts")


@SHELF.query(
    "What is the phone number of {name}?",
    "Which number does {name} have?",
    "Tell me the phone of {name}.",
)
def ask_phone(world: World) -> Drawn:
    key, name = someone(world)
    phone = str(world.get("contact", key)["phone"])
    return Drawn(
        {"name": name},
        [Has(kind="contact", match={"name": name}, values={"phone": phone})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(form="digits", value=phone),
    )


@SHELF.query(
    "Where does {name} work?",
    "Which company does {name} work for?",
    "What is the company of {name}?",
)
def ask_company(world: World) -> Drawn:
    key, name = someone(world)
    company = str(world.get("contact", key)["company"])
    others = tuple(c for c in words.COMPANIES if c != company)
    return Drawn(
        {"name": name},
        [Has(kind="contact", match={"name": name}, values={"company": company})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(value=company, others=others),
    )


@SHELF.query(
    "How many contacts have a star?",
    "How many of my contacts are starred?",
    "Count the contacts with a star.",
)
def ask_stars(world: World) -> Drawn:
    number = sum(bool(record["star"]) for record in world.data["contact"].values())
    return Drawn(
        {},
        [Listed(kind="contact", match={"star": True})],
        [OPEN, tap("stars")],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "How many contacts are called {first}?",
    "How many people with the first name {first} do I know?",
    "Count the contacts with the name {first}.",
    held_out=True,
)
def ask_namesakes(world: World) -> Drawn:
    names = [str(record["name"]) for record in world.data["contact"].values()]
    first = world.one([first for first in words.FIRST if sum(first in name for name in names) <= 2])
    for _ in range(world.rng.randint(1, 2)):
        key = world.pick("contact")
        world.get("contact", key)["name"] = world.unlike(
            "contact", "name", lambda: f"{first} {world.one(words.LAST)}"
        )
    for key, record in world.data["contact"].items():
        if first in str(record["name"]):
            world.use("contact", key)
    number = sum(first in str(record["name"]) for record in world.data["contact"].values())
    return Drawn(
        {"first": first},
        [Listed(kind="contact", match={"name": first})],
        [OPEN, tap("search"), write(first)],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "Do {name} and {other} work for the same company?",
    "Is the company of {name} also that of {other}?",
    "{name} and {other}: have they the same company?",
    exhibits=2,
)
def ask_same_company(world: World) -> Drawn:
    key, name = someone(world, namesake=False)
    second, other = someone(world, namesake=False)
    company = str(world.get("contact", key)["company"])
    if world.flip():
        world.get("contact", second)["company"] = company
    theirs = str(world.get("contact", second)["company"])
    return Drawn(
        {"name": name, "other": other},
        [
            Has(kind="contact", match={"name": name}, values={"company": company}),
            Has(kind="contact", match={"name": other}, values={"company": theirs}),
        ],
        [OPEN, either(
            [tap(f"r{key}"), BACK, tap(f"r{second}")], [tap(f"r{second}"), BACK, tap(f"r{key}")]
        )],
        answer=Answer(form="yes-no", value="yes" if company == theirs else "no"),
    )  # fmt: skip


@SHELF.query(
    "Are {name} and {other} in the same group?",
    "Is the group of {name} also that of {other}?",
    "{name} and {other}: have they the same group?",
    exhibits=2,
)
def ask_same_group(world: World) -> Drawn:
    found = [someone(world, namesake=False) for _ in range(2)]
    groups = [str(world.get("contact", key)["group"]) for key, _ in found]
    if world.flip():
        world.get("contact", found[1][0])["group"] = groups[1] = groups[0]
    one, two = ([tap(f"r{key}")] for key, _ in found)
    return Drawn(
        {"name": found[0][1], "other": found[1][1]},
        [
            Has(kind="contact", match={"name": name}, values={"group": group})
            for (_, name), group in zip(found, groups, strict=True)
        ],
        [OPEN, either([*one, BACK, *two], [*two, BACK, *one])],
        answer=Answer(form="yes-no", value="yes" if groups[0] == groups[1] else "no"),
    )
