"""Two things to do with people and their numbers, which need two exhibits."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.contacts_tasks import OPEN, make, someone
from selfverify_phone.templates.ways import BACK, either, hold, tap, write

SHELF = Shelf("contacts")


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
    hidden=True,
    exhibits=2,
)
def star_and_phone(world: World) -> Drawn:
    key, name = someone(world, namesake=False)
    world.get("contact", key)["star"] = False
    second, other = someone(world)
    phone = world.number()
    change = [hold(f"r{second}"), tap("edit"), tap("phone"), write(phone), tap("save")]
    starred = [tap(f"r{key}"), tap("star")]
    return Drawn(
        {"name": name, "other": other, "phone": phone},
        [
            Has(kind="contact", match={"name": name}, values={"star": True}),
            Has(kind="contact", match={"name": other}, values={"phone": phone}),
        ],
        [OPEN, either([*change, *starred], [*starred, BACK, *change])],
        [either([tap(f"r{second}")], [BACK, tap(f"r{second}")])],
    )


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
