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
    "spend": book(ANY_CATEGORY),
    "earn": book(INCOME, "Income"),
    "spend-note": Template(spend_note, hidden=True),
    "spend-account": book(ACCOUNT, opened=True),
    "spend-day": book(DAY, opened=True).kept_for_tests(),
    "amount": edit(ENTRY, AMOUNT),
    "category": edit(ENTRY, CATEGORY),
    "delete": DELETE,
    "limit": Template(limit),
    "limit-and-spend": in_turn(Template(limit), book(FOOD)),
    "delete-and-limit": Template(delete_and_limit, exhibits=2).kept_for_tests(),
    "ask-balance": Template(in_all, "query"),
    "ask-account": Template(in_account, "query"),
    "ask-paid": ask(ENTRY, "account", "text", ACCOUNTS),
    "ask-incomes": count("entry", "type", "Income", *ENTRIES, tap("earned")).kept_for_tests(),
    "ask-older": ranked(ENTRY, OTHER, "day", DAYS),
    "ask-same-account": same_value(ENTRY, OTHER, "account"),
}
