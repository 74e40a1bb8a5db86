"""Tasks about what was spent and earned."""

from __future__ import annotations

from selfverify.agents.goals import Absent, Has, Listed
from selfverify.agents.phone.apps.calendar_app import DAYS
from selfverify.agents.phone.apps.money_app import ACCOUNTS, CATEGORIES, balance
from selfverify.agents.phone.contents import words
from selfverify.agents.phone.contents.world import World
from selfverify.agents.phone.templates.base import Drawn, Shelf
from selfverify.agents.phone.templates.ways import BACK, Step, launch, tap, write
from selfverify.agents.query_answers import Answer

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


@SHELF.query(
    "What is the balance of all accounts together?",
    "How much money is there in all?",
    "Tell me the balance.",
)
def ask_balance(world: World) -> Drawn:
    now = balance(world.data)
    return Drawn(
        {},
        [Has(kind="total", key="main", values={"balance": now})],
        [OPEN],
        answer=Answer(form="number", value=str(now)),
    )


@SHELF.query(
    "How much is in the account {account}?",
    "What is the balance of {account}?",
    "Tell me the balance of the account {account}.",
)
def ask_account(world: World) -> Drawn:
    key = world.pick("account")
    name = str(world.get("account", key)["name"])
    now = balance(world.data, name)
    return Drawn(
        {"account": name},
        [Has(kind="account", match={"name": name}, values={"balance": now})],
        [OPEN, *SUMS],
        answer=Answer(form="number", value=str(now)),
    )


@SHELF.query(
    "Which account paid the entry {note}?",
    "To which account does the entry {note} belong?",
    "What is the account of the entry with the note {note}?",
)
def ask_paid(world: World) -> Drawn:
    key, note = entry(world)
    account = str(world.get("entry", key)["account"])
    return Drawn(
        {"note": note},
        [Has(kind="entry", match={"note": note}, values={"account": account})],
        [OPEN, *to(key, note)],
        answer=Answer(value=account, others=tuple(name for name in ACCOUNTS if name != account)),
    )


@SHELF.query(
    "How many entries are income?",
    "How often did I earn something?",
    "Count the entries of the type income.",
    held_out=True,
)
def ask_incomes(world: World) -> Drawn:
    number = sum(record["type"] == "Income" for record in world.data["entry"].values())
    return Drawn(
        {},
        [Listed(kind="entry", match={"type": "Income"})],
        [OPEN, *ENTRIES, tap("earned")],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "Which entry is older, {note} or {other}?",
    "Was {note} or {other} booked on an earlier day?",
    "{note} or {other}: which entry has the earlier day?",
    exhibits=2,
)
def ask_older(world: World) -> Drawn:
    key, note = entry(world)
    second, other = entry(world)
    early, late = sorted(world.some(range(len(DAYS)), 2))
    world.get("entry", key)["day"], world.get("entry", second)["day"] = DAYS[early], DAYS[late]
    one, two = (note, other) if world.flip() else (other, note)
    return Drawn(
        {"note": one, "other": two},
        [
            Has(kind="entry", match={"note": note}, values={"day": DAYS[early]}),
            Has(kind="entry", match={"note": other}, values={"day": DAYS[late]}),
        ],
        [OPEN, *to(key, note), BACK, tap("query"), write(other), tap(f"r{second}")],
        answer=Answer(value=note, others=(other,)),
    )


@SHELF.query(
    "Did the same account pay {note} and {other}?",
    "Do the entries {note} and {other} have the same account?",
    "Is the account of {note} also that of {other}?",
    exhibits=2,
)
def ask_same_account(world: World) -> Drawn:
    found = [entry(world) for _ in range(2)]
    accounts = [str(world.get("entry", key)["account"]) for key, _ in found]
    if world.flip():
        world.get("entry", found[1][0])["account"] = accounts[1] = accounts[0]
    return Drawn(
        {"note": found[0][1], "other": found[1][1]},
        [
            Has(kind="entry", match={"note": note}, values={"account": account})
            for (_, note), account in zip(found, accounts, strict=True)
        ],
        [OPEN, *to(*found[0]), BACK, tap("query"), write(found[1][1]), tap(f"r{found[1][0]}")],
        answer=Answer(form="yes-no", value="yes" if accounts[0] == accounts[1] else "no"),
    )
