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
    "add": add(PERSON, World.person, EMPTY, PHONE),
    "add-company": add(PERSON, World.person, EMPTY, COMPANY),
    "add-group": add(PERSON, World.person, EMPTY, GROUP).kept_for_tests(),
    "phone": edit(CONTACT, PHONE),
    "company": edit(CONTACT, COMPANY),
    "group": edit(CONTACT, GROUP),
    "note": edit(CONTACT, NOTE).kept_for_tests(),
    "rename": edit(CONTACT, Field("name", says="new", draw=relative)),
    "star": switch(CONTACT, "star", True),
    "unstar": switch(STARRED, "star", False, seek=True),
    "delete": delete(CONTACT, "delete", "delete", searched=True),
    "add-two": Template(add_two, hidden=True, exhibits=2),
    "star-and-phone": Template(star_and_phone, hidden=True, exhibits=2),
    "delete-and-star": Template(delete_and_star, hidden=True, exhibits=2).kept_for_tests(),
    "star-two": in_any_order(STAR, STAR_OTHER),
    "ask-phone": ask(CONTACT, "phone", "digits"),
    "ask-company": ask(CONTACT, "company", "text", words.COMPANIES),
    "ask-stars": count("contact", "star", True, tap("stars")),
    "ask-namesakes": Template(namesakes, "query").kept_for_tests(),
    "ask-same-company": same_value(PERSON, OTHER, "company"),
    "ask-same-group": same_value(PERSON, OTHER, "group"),
}
