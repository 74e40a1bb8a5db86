"""Tasks about what was spent and earned."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.calendar_app import DAYS
from selfverify_phone.apps.money_app import ACCOUNTS, CATEGORIES
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import Step, launch, tap, write

SHELF = Shelf("money")
OPEN = launch("money")
ENTRIES, BUDGETS, SUMS = ([tap("menu"), tap(view)] for view in ("entries", "budgets", "accounts"))


def entry(world: World) -> tuple[str, str]:
    """An entry's key and note."""
    key = world.pick("entry")
    return key, str(world.get("entry", key)["note"])


def to(key: str, note: str) -> list[Step]:
    """From the first page to an entry."""
    return [tap("search"), write(note), tap(f"r{key}")]


def new_note(world: World) -> str:
    return str(world.unlike("entry", "note", lambda: world.one(words.ENTRIES)))


def adding(amount: int, category: str, *more: Step) -> list[Step]:
    """From any page to a new entry and back."""
    chosen = [] if category == "Food" else [tap("category"), tap(category.casefold())]
    return [tap("add"), write(str(amount)), *chosen, *more, tap("save")]


@SHELF.operation(
    "Add an expense of {amount} for {category}.",
    "Record that I spent {amount}, category {category}.",
    "Book an expense: {amount}, {category}.",
    hidden=True,
)
def spend(world: World) -> Drawn:
    amount, category = world.amount(), world.one(CATEGORIES)
    values = {"category": category, "type": "Expense"}
    return Drawn(
        {"amount": str(amount), "category": category},
        [Has(kind="entry", match={"amount": amount}, values=values, new=True)],
        [OPEN, *adding(amount, category)],
        ENTRIES,
    )


@SHELF.operation(
    "Record an income of {amount} and mark it as {category}.",
    "Add an income: {amount}, {category}.",
    "I earned {amount}: book it as {category}.",
    hidden=True,
)
def earn(world: World) -> Drawn:
    amount, category = world.amount(), world.one(("Salary", "Gift"))
    values = {"category": category, "type": "Income"}
    return Drawn(
        {"amount": str(amount), "category": category},
        [Has(kind="entry", match={"amount": amount}, values=values, new=True)],
        [OPEN, *adding(amount, category, tap("type"))],
        ENTRIES,
    )


@SHELF.operation(
    "Add an expense of {amount} with the note {note}.",
    "Book {amount} that I spent, note {note}.",
    "Record an expense: {amount}, {note}.",
    hidden=True,
)
def spend_note(world: World) -> Drawn:
    amount, note = world.amount(), new_note(world)
    values = {"amount": amount, "type": "Expense"}
    return Drawn(
        {"amount": str(amount), "note": note},
        [Has(kind="entry", match={"note": note}, values=values, new=True)],
        [OPEN, *adding(amount, "Food", tap("note"), write(note))],
        [tap("search"), write(note)],
    )


@SHELF.operation(
    "Add an expense of {amount} that was paid by {account}.",
    "Book {amount} as an expense of the account {account}.",
    "I spent {amount} from {account}: record it.",
    hidden=True,
)
def spend_account(world: World) -> Drawn:
    amount, account, key = world.amount(), world.one(ACCOUNTS, "Cash"), world.next("entry")
    values = {"account": account, "type": "Expense"}
    return Drawn(
        {"amount": str(amount), "account": account},
        [Has(kind="entry", match={"amount": amount}, values=values, new=True)],
        [OPEN, *adding(amount, "Food", tap("account"), tap(account.casefold()))],
        [*ENTRIES, tap(f"r{key}")],
    )


@SHELF.operation(
    "Add an expense of {amount} on {day}.",
    "Book {amount} that I spent on {day}.",
    "Record an expense of {amount} for {day}.",
    hidden=True,
    held_out=True,
)
def spend_day(world: World) -> Drawn:
    amount, day, key = world.amount(), world.one(DAYS[1:]), world.next("entry")
    values = {"day": day, "type": "Expense"}
    return Drawn(
        {"amount": str(amount), "day": day},
        [Has(kind="entry", match={"amount": amount}, values=values, new=True)],
        [OPEN, *adding(amount, "Food", tap("day"), tap(f"o{DAYS.index(day) + 1}"))],
        [*ENTRIES, tap(f"r{key}")],
    )


@SHELF.operation(
    "Change the amount of the entry {note} to {amount}.",
    "The entry with the note {note} was {amount}: change it.",
    "Set the entry {note} to {amount}.",
)
def amount(world: World) -> Drawn:
    key, note = entry(world)
    new = world.amount()
    return Drawn(
        {"note": note, "amount": str(new)},
        [Has(kind="entry", match={"note": note}, values={"amount": new})],
        [OPEN, *to(key, note), tap("edit"), tap("amount"), write(str(new)), tap("save")],
    )


@SHELF.operation(
    "Change the category of the entry {note} to {category}.",
    "The entry with the note {note} belongs to {category}: change it.",
    "Mark the entry {note} as {category}.",
)
def category(world: World) -> Drawn:
    key, note = entry(world)
    new = world.one(CATEGORIES, str(world.get("entry", key)["category"]))
    return Drawn(
        {"note": note, "category": new},
        [Has(kind="entry", match={"note": note}, values={"category": new})],
        [OPEN, *to(key, note), tap("edit"), tap("category"), tap(new.casefold()), tap("save")],
    )


@SHELF.operation(
    "Delete the entry {note}.",
    "Remove the entry with the note {note}.",
    "The entry {note} is wrong: delete it.",
)
def delete(world: World) -> Drawn:
    key, note = entry(world)
    return Drawn(
        {"note": note},
        [Absent(kind="entry", key=key, match={"note": note})],
        [OPEN, tap("search"), write(note), Step("long_press", f"r{key}"), tap("delete")],
    )


def budget(world: World) -> tuple[str, int, list[Step]]:
    """A category, a new limit, and the way from any page."""
    key = world.pick("budget")
    name = str(world.get("budget", key)["category"])
    limit = world.one(range(100, 1000, 50), int(world.get("budget", key)["limit"]))
    return name, limit, [*BUDGETS, tap(name.casefold()), write(str(limit)), tap("save")]


@SHELF.operation(
    "Set the budget for {category} to {limit}.",
    "Change the {category} budget to {limit}.",
    "Give {category} a budget of {limit}.",
)
def limit(world: World) -> Drawn:
    name, limit, way = budget(world)
    return Drawn(
        {"category": name, "limit": str(limit)},
        [Has(kind="budget", match={"category": name}, values={"limit": limit})],
        [OPEN, *way],
    )


@SHELF.operation(
    "Set the {category} budget to {limit} and add an expense of {amount} for Food.",
    "Add an expense of {amount} for Food; the budget for {category} is {limit}.",
    "Book {amount} spent on Food, and set the budget of {category} to {limit}.",
    hidden=True,
    exhibits=2,
)
def limit_and_spend(world: World) -> Drawn:
    name, limit, way = budget(world)
    amount = world.amount()
    values = {"category": "Food", "type": "Expense"}
    return Drawn(
        {"category": name, "limit": str(limit), "amount": str(amount)},
        [
            Has(kind="budget", match={"category": name}, values={"limit": limit}),
            Has(kind="entry", match={"amount": amount}, values=dict(values), new=True),
        ],
        [OPEN, *way, *adding(amount, "Food")],
        ENTRIES,
    )


@SHELF.operation(
    "Delete the entry {note}, and set the {category} budget to {limit}.",
    "Set the budget for {category} to {limit} and remove the entry {note}.",
    "The entry {note} must go, and {category} gets a budget of {limit}.",
    exhibits=2,
    held_out=True,
)
def delete_and_limit(world: World) -> Drawn:
    key, note = entry(world)
    name, limit, way = budget(world)
    return Drawn(
        {"note": note, "category": name, "limit": str(limit)},
        [
            Absent(kind="entry", key=key, match={"note": note}),
            Has(kind="budget", match={"category": name}, values={"limit": limit}),
        ],
        [OPEN, *way, tap("search"), write(note), Step("long_press", f"r{key}"), tap("delete")],
    )
