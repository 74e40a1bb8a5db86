"""Tasks and questions about what was spent and earned."""

from __future__ import annotations

from selfverify.agents.goals import Has
from selfverify_phone.apps.calendar_app import DAYS
from selfverify_phone.apps.money_app import ACCOUNTS, CATEGORIES, EMPTY, balance
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Field, Template, Thing
from selfverify_phone.templates.patterns import both, delete, edit, in_turn
from selfverify_phone.templates.questions import ask, count, number, ranked, same_value
from selfverify_phone.templates.ways import BACK, Step, hold, tap, write

ENTRIES, BUDGETS, SUMS = ([tap("menu"), tap(view)] for view in ("entries", "budgets", "accounts"))


def found(world: World, key: str) -> list[Step]:
    """From any page to where an entry's row is seen."""
    return [tap("search"), write(str(world.get("entry", key)["note"]))]


def again(world: World, key: str) -> list[Step]:
    """From an entry to another one."""
    return [BACK, tap("query"), write(str(world.get("entry", key)["note"])), tap(f"r{key}")]


ENTRY = Thing("entry", {"note": "note"}, way=lambda world, key: [*found(world, key), tap(f"r{key}")])
OTHER = Thing("entry", {"other": "note"}, again=again)
HELD = Thing("entry", {"note": "note"}, way=lambda world, key: [*found(world, key), hold(f"r{key}")])
DELETE = delete(HELD, "delete")
AMOUNT = Field("amount", draw=lambda world, record: world.amount())
CATEGORY = Field("category", CATEGORIES, chosen=True)
ANY_CATEGORY = Field("category", CATEGORIES, chosen=True, draw=lambda world, record: world.one(CATEGORIES))
FOOD = Field("category", CATEGORIES, chosen=True, says="for", draw=lambda world, record: "Food")
INCOME = Field("category", ("Salary", "Gift"), chosen=True)
ACCOUNT, DAY = Field("account", ACCOUNTS, chosen=True), Field("day", DAYS, chosen=True)


def book(field: Field, type: str = "Expense", opened: bool = False) -> Template:
    """A new entry with an amount and one more value, which the entries or its page show."""

    def draw(world: World) -> Drawn:
        amount, value = world.amount(), field.drawn(world, EMPTY)
        chosen = [] if value == EMPTY[field.name] else field.enter(value)
        turned = [] if type == EMPTY["type"] else [tap("type")]
        page = [tap(f"r{world.next('entry')}")] if opened else []
        return Drawn(
            {"amount": str(amount), **field.said(value)},
            [Has(kind="entry", match={"amount": amount}, values={field.name: value, "type": type}, new=True)],
            [tap("add"), write(str(amount)), *chosen, *turned, tap("save")],
            [*ENTRIES, *page],
        )

    return Template(draw, hidden=True)


def spend_note(world: World) -> Drawn:
    amount, note = world.amount(), str(world.unlike("entry", "note", lambda: world.one(words.ENTRIES)))
    values = {"amount": amount, "type": "Expense"}
    return Drawn(
        {"amount": str(amount), "note": note},
        [Has(kind="entry", match={"note": note}, values=values, new=True)],
        [tap("add"), write(str(amount)), tap("note"), write(note), tap("save")],
        [tap("search"), write(note)],
    )


def limit(world: World) -> Drawn:
    record = world.get("budget", world.pick("budget"))
    name, new = str(record["category"]), world.one(range(100, 1000, 50), int(record["limit"]))
    return Drawn(
        {"category": name, "limit": str(new)},
        [Has(kind="budget", match={"category": name}, values={"limit": new})],
        [*BUDGETS, tap(name.casefold()), write(str(new)), tap("save")],
    )


def delete_and_limit(world: World) -> Drawn:
    deleted, limited = DELETE.draw(world), limit(world)
    return both(deleted, limited, [*limited.solve, *deleted.solve])


def in_all(world: World) -> Drawn:
    now = balance(world.data)
    needs = [Has(kind="total", key="main", values={"balance": now})]
    return Drawn({}, needs, [], answer=number(now))


def in_account(world: World) -> Drawn:
    name = str(world.get("account", world.pick("account"))["name"])
    now = balance(world.data, name)
    needs = [Has(kind="account", match={"name": name}, values={"balance": now})]
    return Drawn({"account": name}, needs, SUMS, answer=number(now))


TASKS: dict[str, Template] = {
    "spend": book(ANY_CATEGORY).asked(
        "Add an expense of {amount} for {category}.",
        "Record that I spent {amount}, category {category}.",
        "Book an expense: {amount}, {category}.",
    ),
    "earn": book(INCOME, "Income").asked(
        "Record an income of {amount} and mark it as {category}.",
        "Add an income: {amount}, {category}.",
        "I earned {amount}: book it as {category}.",
    ),
    "spend-note": Template(spend_note, hidden=True).asked(
        "Add an expense of {amount} with the note {note}.",
        "Book {amount} that I spent, note {note}.",
        "Record an expense: {amount}, {note}.",
    ),
    "spend-account": book(ACCOUNT, opened=True).asked(
        "Add an expense of {amount} that was paid by {account}.",
        "Book {amount} as an expense of the account {account}.",
        "I spent {amount} from {account}: record it.",
    ),
    "spend-day": book(DAY, opened=True).asked_in_tests(
        "Add an expense of {amount} on {day}.",
        "Book {amount} that I spent on {day}.",
        "Record an expense of {amount} for {day}.",
    ),
    "amount": edit(ENTRY, AMOUNT).asked(
        "Change the amount of the entry {note} to {amount}.",
        "The entry with the note {note} was {amount}: change it.",
        "Set the entry {note} to {amount}.",
    ),
    "category": edit(ENTRY, CATEGORY).asked(
        "Change the category of the entry {note} to {category}.",
        "The entry with the note {note} belongs to {category}: change it.",
        "Mark the entry {note} as {category}.",
    ),
    "delete": DELETE.asked(
        "Delete the entry {note}.",
        "Remove the entry with the note {note}.",
        "The entry {note} is wrong: delete it.",
    ),
    "limit": Template(limit).asked(
        "Set the budget for {category} to {limit}.",
        "Change the {category} budget to {limit}.",
        "Give {category} a budget of {limit}.",
    ),
    "limit-and-spend": in_turn(Template(limit), book(FOOD)).asked(
        "Set the {category} budget to {limit} and add an expense of {amount} for Food.",
        "Add an expense of {amount} for Food; the budget for {category} is {limit}.",
        "Book {amount} spent on Food, and set the budget of {category} to {limit}.",
    ),
    "delete-and-limit": Template(delete_and_limit, exhibits=2).asked_in_tests(
        "Delete the entry {note}, and set the {category} budget to {limit}.",
        "Set the budget for {category} to {limit} and remove the entry {note}.",
        "The entry {note} must go, and {category} gets a budget of {limit}.",
    ),
    "ask-balance": Template(in_all, "query").asked(
        "What is the balance of all accounts together?",
        "How much money is there in all?",
        "Tell me the balance.",
    ),
    "ask-account": Template(in_account, "query").asked(
        "How much is in the account {account}?",
        "What is the balance of {account}?",
        "Tell me the balance of the account {account}.",
    ),
    "ask-paid": ask(ENTRY, "account", "text", ACCOUNTS).asked(
        "Which account paid the entry {note}?",
        "To which account does the entry {note} belong?",
        "What is the account of the entry with the note {note}?",
    ),
    "ask-incomes": count("entry", "type", "Income", *ENTRIES, tap("earned")).asked_in_tests(
        "How many entries are income?",
        "How often did I earn something?",
        "Count the entries of the type income.",
    ),
    "ask-older": ranked(ENTRY, OTHER, "day", DAYS).asked(
        "Which entry is older, {note} or {other}?",
        "Was {note} or {other} booked on an earlier day?",
        "{note} or {other}: which entry has the earlier day?",
    ),
    "ask-same-account": same_value(ENTRY, OTHER, "account").asked(
        "Did the same account pay {note} and {other}?",
        "Do the entries {note} and {other} have the same account?",
        "Is the account of {note} also that of {other}?",
    ),
}
