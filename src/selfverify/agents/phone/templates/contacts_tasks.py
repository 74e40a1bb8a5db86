"""Tasks about people and their numbers."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has, Listed
from selfverify.agents.phone.apps.contacts_app import GROUPS
from selfverify.agents.phone.contents import words
from selfverify.agents.phone.contents.world import World
from selfverify.agents.phone.templates.base import Drawn, Shelf
from selfverify.agents.phone.templates.ways import BACK, Step, either, launch, tap, write
from selfverify.agents.query_answers import Answer

SHELF = Shelf("contacts")
OPEN = launch("contacts")


def someone(world: World, namesake: bool = True) -> tuple[str, str]:
    """A contact's key and name; mostly there is another one with the same first name."""
    key = world.pick("contact")
    name = str(world.get("contact", key)["name"])
    if namesake and world.flip():
        other = world.pick("contact")
        first = name.split()[0]
        world.get("contact", other)["name"] = world.unlike(
            "contact", "name", lambda: f"{first} {world.one(words.LAST)}"
        )
    return key, name


def make(name: str, **typed: str) -> list[Step]:
    """From the list to a form for a new contact and back."""
    fields = [step for field, value in typed.items() for step in (tap(field), write(value))]
    return [tap("add"), write(name), *fields, tap("save")]


@SHELF.operation(
    "Add a contact {name} with the phone number {phone}.",
    "Save the number {phone} under the new name {name}.",
    "Create a new contact: {name}, phone {phone}.",
    "Put {name} into my contacts, the number is {phone}.",
    hidden=True,
)
def add(world: World) -> Drawn:
    name, phone, key = world.person(), world.number(), world.next("contact")
    return Drawn(
        {"name": name, "phone": phone},
        [Has(kind="contact", match={"name": name}, values={"phone": phone}, new=True)],
        [OPEN, *make(name, phone=phone)],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Add a contact {name}, company {company}.",
    "Create the contact {name} who works at {company}.",
    "I met {name} from {company}: save this contact.",
    hidden=True,
)
def add_company(world: World) -> Drawn:
    name, company, key = world.person(), world.one(words.COMPANIES), world.next("contact")
    return Drawn(
        {"name": name, "company": company},
        [Has(kind="contact", match={"name": name}, values={"company": company}, new=True)],
        [OPEN, *make(name, company=company)],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Add a contact {name} to the group {group}.",
    "Create the contact {name} in the group {group}.",
    "Save a new contact {name} with the group {group}.",
    hidden=True,
    held_out=True,
)
def add_group(world: World) -> Drawn:
    name, group, key = world.person(), world.one(GROUPS, "None"), world.next("contact")
    return Drawn(
        {"name": name, "group": group},
        [Has(kind="contact", match={"name": name}, values={"group": group}, new=True)],
        [OPEN, tap("add"), write(name), tap("group"), tap(group.casefold()), tap("save")],
        [tap(f"r{key}")],
    )


@SHELF.operation(
    "Change the phone number of {name} to {phone}.",
    "{name} has a new number, {phone}: change the contact.",
    "Set the phone of {name} to {phone}.",
)
def phone(world: World) -> Drawn:
    key, name = someone(world)
    number = world.number()
    return Drawn(
        {"name": name, "phone": number},
        [Has(kind="contact", match={"name": name}, values={"phone": number})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("phone"), write(number), tap("save")],
    )


@SHELF.operation(
    "Change the company of {name} to {company}.",
    "{name} works at {company} now: change the contact.",
    "Set the company of {name} to {company}.",
)
def company(world: World) -> Drawn:
    key, name = someone(world)
    new = world.one(words.COMPANIES, str(world.get("contact", key)["company"]))
    return Drawn(
        {"name": name, "company": new},
        [Has(kind="contact", match={"name": name}, values={"company": new})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("company"), write(new), tap("save")],
    )


@SHELF.operation(
    "Move {name} to the group {group}.",
    "Put {name} into the group {group}.",
    "Set the group of {name} to {group}.",
)
def group(world: World) -> Drawn:
    key, name = someone(world)
    new = world.one(GROUPS, str(world.get("contact", key)["group"]))
    return Drawn(
        {"name": name, "group": new},
        [Has(kind="contact", match={"name": name}, values={"group": new})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("group"), tap(new.casefold()), tap("save")],
    )


@SHELF.operation(
    "Write the note {note} to {name}.",
    "Set the note of {name} to {note}.",
    "Note {note} in the contact {name}.",
    held_out=True,
)
def note(world: World) -> Drawn:
    key, name = someone(world)
    new = world.one(words.NOTES, str(world.get("contact", key)["note"]))
    return Drawn(
        {"name": name, "note": new},
        [Has(kind="contact", match={"name": name}, values={"note": new})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("note"), write(new), tap("save")],
    )


@SHELF.operation(
    "Change the name of {name} to {new}.",
    "{name} is called {new} now: change the contact.",
    "Rename the contact {name} to {new}.",
)
def rename(world: World) -> Drawn:
    key, name = someone(world)
    new = world.unlike("contact", "name", lambda: f"{name.split()[0]} {world.one(words.LAST)}")
    return Drawn(
        {"name": name, "new": new},
        [Has(kind="contact", key=key, values={"name": new})],
        [OPEN, tap(f"r{key}"), tap("edit"), tap("name"), write(new), tap("save")],
    )


@SHELF.operation(
    "Star the contact {name}.",
    "Give {name} a star.",
    "Mark {name} with a star in my contacts.",
)
def star(world: World) -> Drawn:
    key, name = someone(world)
    world.get("contact", key)["star"] = False
    return Drawn(
        {"name": name},
        [Has(kind="contact", match={"name": name}, values={"star": True})],
        [OPEN, tap(f"r{key}"), tap("star")],
    )


@SHELF.operation(
    "Remove the star of {name}.",
    "Take the star away from the contact {name}.",
    "{name} should not have a star any more.",
)
def unstar(world: World) -> Drawn:
    key = world.pick("contact", star=True)
    name = str(world.get("contact", key)["name"])
    return Drawn(
        {"name": name},
        [Has(kind="contact", match={"name": name}, values={"star": False})],
        [OPEN, either([tap(f"r{key}")], [tap("stars"), tap(f"r{key}")]), tap("star")],
    )


@SHELF.operation(
    "Delete the contact {name}.",
    "Remove {name} from my contacts.",
    "I do not need {name} any more: delete the contact.",
    hidden=True,
)
def delete(world: World) -> Drawn:
    key, name = someone(world)
    return Drawn(
        {"name": name},
        [Absent(kind="contact", key=key, match={"name": name})],
        [OPEN, tap(f"r{key}"), tap("delete"), tap("delete")],
        [tap("search"), write(name)],
    )


@SHELF.operation(
    "Add two contacts: {name} with the number {phone}, and {other}.",
    "Save {name}, phone {phone}, and {other} as contacts.",
    "Create contacts for {name} ({phone}) and for {other}.",
    hidden=True,
    exhibits=2,
)
def add_two(world: World) -> Drawn:
    name, phone = world.person(), world.number()
    other = world.unlike("contact", "name", lambda: world.one([world.person() for _ in range(9)], name))
    first = world.next("contact")
    return Drawn(
        {"name": name, "phone": phone, "other": other},
        [
            Has(kind="contact", match={"name": name}, values={"phone": phone}, new=True),
            Has(kind="contact", match={"name": other}, new=True),
        ],
        [OPEN, *make(name, phone=phone), *make(other)],
        [tap(f"r{first}")],
    )


@SHELF.operation(
    "Star {name} and change the phone number of {other} to {phone}.",
    "Give {name} a star, and {other} the new number {phone}.",
    "Two things: star {name}; the phone of {other} is now {phone}.",
    exhibits=2,
)
def star_and_phone(world: World) -> Drawn:
    key, name = someone(world, namesake=False)
    world.get("contact", key)["star"] = False
    second, other = someone(world)
    phone = world.number()
    change = [tap(f"r{second}"), tap("edit"), tap("phone"), write(phone), tap("save")]
    return Drawn(
        {"name": name, "other": other, "phone": phone},
        [
            Has(kind="contact", match={"name": name}, values={"star": True}),
            Has(kind="contact", match={"name": other}, values={"phone": phone}),
        ],
        [OPEN, either(
            [tap(f"r{key}"), tap("star"), BACK, *change],
            [*change, BACK, tap(f"r{key}"), tap("star")],
        )],
    )  # fmt: skip


@SHELF.operation(
    "Delete the contact {name} and star {other}.",
    "Remove {name} from my contacts and give {other} a star.",
    "Star {other}, and delete {name}.",
    hidden=True,
    exhibits=2,
    held_out=True,
)
def delete_and_star(world: World) -> Drawn:
    key, name = someone(world, namesake=False)
    second, other = someone(world, namesake=False)
    world.get("contact", second)["star"] = False
    delete, star = [tap(f"r{key}"), tap("delete"), tap("delete")], [tap(f"r{second}"), tap("star")]
    return Drawn(
        {"name": name, "other": other},
        [
            Absent(kind="contact", key=key, match={"name": name}),
            Has(kind="contact", match={"name": other}, values={"star": True}),
        ],
        [OPEN, either([*delete, *star], [*star, BACK, *delete])],
        [either([tap("search"), write(name)], [BACK, tap("search"), write(name)])],
    )


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


@SHELF.operation(
    "Star {name} and {other}.",
    "Give the contacts {name} and {other} a star.",
    "Mark two contacts with a star: {name}, {other}.",
    exhibits=2,
)
def star_two(world: World) -> Drawn:
    found = [someone(world, namesake=False) for _ in range(2)]
    for key, _ in found:
        world.get("contact", key)["star"] = False
    one, two = ([tap(f"r{key}"), tap("star")] for key, _ in found)
    return Drawn(
        {"name": found[0][1], "other": found[1][1]},
        [Has(kind="contact", match={"name": name}, values={"star": True}) for _, name in found],
        [OPEN, either([*one, BACK, *two], [*two, BACK, *one])],
    )


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
