"""Tasks and questions about people and their numbers."""

from __future__ import annotations

from selfverify.agents.goals import Has, Listed
from selfverify_phone.apps.contacts_app import EMPTY, GROUPS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.system.device import Record
from selfverify_phone.templates.base import Drawn, Field, Template, Thing
from selfverify_phone.templates.patterns import add, both, delete, edit, in_any_order, switch
from selfverify_phone.templates.questions import ask, count, number, same_value
from selfverify_phone.templates.ways import BACK, Step, either, hold, tap, write


def with_namesake(world: World) -> str:
    """Mostly there is another contact with the same first name."""
    key = world.pick("contact")
    if world.flip():
        other = world.pick("contact")
        world.get("contact", other)["name"] = relative(world, world.get("contact", key))
    return key


def relative(world: World, record: Record) -> str:
    """A name that nobody has, with the first name of this contact."""
    first = str(record["name"]).split()[0]
    return world.unlike("contact", "name", lambda: f"{first} {world.one(words.LAST)}")


CONTACT = Thing("contact", {"name": "name"}, draw=with_namesake)
PERSON = Thing("contact", {"name": "name"})
OTHER = Thing("contact", {"other": "name"})
HELD = Thing("contact", {"other": "name"}, way=lambda world, key: [hold(f"r{key}")], draw=with_namesake)
STARRED = Thing(
    "contact",
    {"name": "name"},
    way=lambda world, key: [either([tap(f"r{key}")], [tap("stars"), tap(f"r{key}")])],
)
PHONE = Field("phone", draw=lambda world, record: world.number())
COMPANY, NOTE = Field("company", words.COMPANIES), Field("note", words.NOTES)
GROUP = Field("group", GROUPS, chosen=True)
STAR = switch(PERSON, "star", True)
STAR_OTHER = switch(OTHER, "star", True)


def add_two(world: World) -> Drawn:
    name, phone = world.person(), world.number()
    other = world.unlike("contact", "name", lambda: world.one([world.person() for _ in range(9)], name))
    typed = [tap("add"), write(name), *PHONE.enter(phone), tap("save")]
    return Drawn(
        {"name": name, "phone": phone, "other": other},
        [
            Has(kind="contact", match={"name": name}, values={"phone": phone}, new=True),
            Has(kind="contact", match={"name": other}, new=True),
        ],
        [*typed, tap("add"), write(other), tap("save")],
        [tap(f"r{world.next('contact')}")],
    )


def with_star(first: Drawn, second: Drawn, listed: Drawn, starred: Drawn, proof: list[Step]) -> Drawn:
    """A star on a page, and something else that ends on the list, where it is not seen."""
    solve = either([*listed.solve, *starred.solve], [*starred.solve, BACK, *listed.solve])
    return both(first, second, [solve], [either(proof, [BACK, *proof])])


def star_and_phone(world: World) -> Drawn:
    starred, phoned = STAR.draw(world), edit(HELD, PHONE).draw(world)
    return with_star(starred, phoned, phoned, starred, [tap(phoned.solve[0].value)])


def delete_and_star(world: World) -> Drawn:
    deleted, starred = delete(PERSON, "delete", "delete", searched=True).draw(world), STAR_OTHER.draw(world)
    return with_star(deleted, starred, deleted, starred, [*deleted.prove])


def namesakes(world: World) -> Drawn:
    records = world.data["contact"]
    names = [str(record["name"]) for record in records.values()]
    first = world.one([first for first in words.FIRST if sum(first in name for name in names) <= 2])
    for _ in range(world.rng.randint(1, 2)):
        key = world.pick("contact")
        records[key]["name"] = relative(world, {"name": first})
    called = [key for key, record in records.items() if first in str(record["name"])]
    world.use("contact", *called)
    needs = [Listed(kind="contact", match={"name": first})]
    return Drawn({"first": first}, needs, [tap("search"), write(first)], answer=number(len(called)))


TASKS: dict[str, Template] = {
    "add": add(PERSON, World.person, EMPTY, PHONE).asked(
        "Add a contact {name} with the phone number {phone}.",
        "Save the number {phone} under the new name {name}.",
        "Create a new contact: {name}, phone {phone}.",
        "Put {name} into my contacts, the number is {phone}.",
    ),
    "add-company": add(PERSON, World.person, EMPTY, COMPANY).asked(
        "Add a contact {name}, company {company}.",
        "Create the contact {name} who works at {company}.",
        "I met {name} from {company}: save this contact.",
    ),
    "add-group": add(PERSON, World.person, EMPTY, GROUP).asked_in_tests(
        "Add a contact {name} to the group {group}.",
        "Create the contact {name} in the group {group}.",
        "Save a new contact {name} with the group {group}.",
    ),
    "phone": edit(CONTACT, PHONE).asked(
        "Change the phone number of {name} to {phone}.",
        "{name} has a new number, {phone}: change the contact.",
        "Set the phone of {name} to {phone}.",
    ),
    "company": edit(CONTACT, COMPANY).asked(
        "Change the company of {name} to {company}.",
        "{name} works at {company} now: change the contact.",
        "Set the company of {name} to {company}.",
    ),
    "group": edit(CONTACT, GROUP).asked(
        "Move {name} to the group {group}.",
        "Put {name} into the group {group}.",
        "Set the group of {name} to {group}.",
    ),
    "note": edit(CONTACT, NOTE).asked_in_tests(
        "Write the note {note} to {name}.",
        "Set the note of {name} to {note}.",
        "Note {note} in the contact {name}.",
    ),
    "rename": edit(CONTACT, Field("name", says="new", draw=relative)).asked(
        "Change the name of {name} to {new}.",
        "{name} is called {new} now: change the contact.",
        "Rename the contact {name} to {new}.",
    ),
    "star": switch(CONTACT, "star", True).asked(
        "Star the contact {name}.", "Give {name} a star.", "Mark {name} with a star in my contacts."
    ),
    "unstar": switch(STARRED, "star", False, seek=True).asked(
        "Remove the star of {name}.",
        "Take the star away from the contact {name}.",
        "{name} should not have a star any more.",
    ),
    "delete": delete(CONTACT, "delete", "delete", searched=True).asked(
        "Delete the contact {name}.",
        "Remove {name} from my contacts.",
        "I do not need {name} any more: delete the contact.",
    ),
    "add-two": Template(add_two, hidden=True, exhibits=2).asked(
        "Add two contacts: {name} with the number {phone}, and {other}.",
        "Save {name}, phone {phone}, and {other} as contacts.",
        "Create contacts for {name} ({phone}) and for {other}.",
    ),
    "star-and-phone": Template(star_and_phone, hidden=True, exhibits=2).asked(
        "Star {name} and change the phone number of {other} to {phone}.",
        "Give {name} a star, and {other} the new number {phone}.",
        "Two things: star {name}; the phone of {other} is now {phone}.",
    ),
    "delete-and-star": Template(delete_and_star, hidden=True, exhibits=2).asked_in_tests(
        "Delete the contact {name} and star {other}.",
        "Remove {name} from my contacts and give {other} a star.",
        "Star {other}, and delete {name}.",
    ),
    "star-two": in_any_order(STAR, STAR_OTHER).asked(
        "Star {name} and {other}.",
        "Give the contacts {name} and {other} a star.",
        "Mark two contacts with a star: {name}, {other}.",
    ),
    "ask-phone": ask(CONTACT, "phone", "digits").asked(
        "What is the phone number of {name}?",
        "Which number does {name} have?",
        "Tell me the phone of {name}.",
    ),
    "ask-company": ask(CONTACT, "company", "text", words.COMPANIES).asked(
        "Where does {name} work?", "Which company does {name} work for?", "What is the company of {name}?"
    ),
    "ask-stars": count("contact", "star", True, tap("stars")).asked(
        "How many contacts have a star?",
        "How many of my contacts are starred?",
        "Count the contacts with a star.",
    ),
    "ask-namesakes": Template(namesakes, "query").asked_in_tests(
        "How many contacts are called {first}?",
        "How many people with the first name {first} do I know?",
        "Count the contacts with the name {first}.",
    ),
    "ask-same-company": same_value(PERSON, OTHER, "company").asked(
        "Do {name} and {other} work for the same company?",
        "Is the company of {name} also that of {other}?",
        "{name} and {other}: have they the same company?",
    ),
    "ask-same-group": same_value(PERSON, OTHER, "group").asked(
        "Are {name} and {other} in the same group?",
        "Is the group of {name} also that of {other}?",
        "{name} and {other}: have they the same group?",
    ),
}
