"""Tasks about people and their numbers."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.contacts_app import GROUPS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import Step, either, launch, tap, write

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
