"""Bookkeeping: entries with category, account and note, budgets, and totals."""

from __future__ import annotations

from functools import partial
from typing import Any

from selfverify.agents.facts import Fact, Listing
from selfverify_phone.apps.calendar_app import DAYS
from selfverify_phone.system.device import App, Data, Frame, Phone, Record
from selfverify_phone.system.forms import (
    changed,
    choose,
    confirm,
    draft,
    facts_of,
    field,
    picked,
    row_id,
    search_of,
    whole_number,
)
from selfverify_phone.system.widgets import View, Widget, counted, icon, row, tab, text

TYPES = ("Expense", "Income")
CATEGORIES = ("Food", "Fun", "Gift", "Health", "Rent", "Salary", "Travel")
ACCOUNTS = ("Bank", "Card", "Cash")
VIEWS = ("overview", "entries", "budgets", "accounts")
EMPTY: Record = {
    "type": "Expense", "amount": 0, "category": "Food", "account": "Cash", "day": DAYS[0], "note": ""
}  # fmt: skip


def signed(record: Record) -> int:
    """An entry's amount, negative where it is an expense."""
    return int(record["amount"]) * (1 if record["type"] == "Income" else -1)


def balance(data: Data, account: str | None = None) -> int:
    """What there is in an account, or in all of them."""
    opened = [r for r in data["account"].values() if account in (None, r["name"])]
    entries = [r for r in data["entry"].values() if account in (None, r["account"])]
    return sum(int(record["start"]) for record in opened) + sum(signed(record) for record in entries)


def totals(data: Data) -> list[Fact]:
    """What the overview and the accounts show."""
    entries = data["entry"].values()
    facts: list[Fact] = [("total/main", "balance", balance(data))]
    for name, sort in (("earned", "Income"), ("spent", "Expense")):
        facts.append(("total/main", name, sum(int(r["amount"]) for r in entries if r["type"] == sort)))
    for key, record in data["account"].items():
        facts.append((f"account/{key}", "balance", balance(data, str(record["name"]))))
    return facts


def root(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("view", "overview")
    view = {"overview": overview, "entries": entries, "budgets": budgets, "accounts": accounts}[now](
        phone, frame
    )
    view.bar = [
        icon("menu", partial(phone.open, "drawer")),
        icon("search", partial(phone.open, "search", focus="query")),
    ]
    view.floating = icon("add", partial(phone.open, "form", focus="amount", key=""))
    return view


def drawer(phone: Phone, frame: Frame) -> View:
    def go(name: str) -> None:
        phone.close()
        phone.frame["form"]["view"] = name
        phone.frame["scroll"] = 0

    return View("Money", [row(name, name.capitalize(), partial(go, name)) for name in VIEWS], style="drawer")


def overview(phone: Phone, frame: Frame) -> View:
    names = ("balance", "earned", "spent")
    facts = {fact[1]: fact for fact in totals(phone.data)[:3]}
    return View("May", [text(name.capitalize(), str(facts[name][2]), facts[name]) for name in names])


def entries(phone: Phone, frame: Frame) -> View:
    sort = frame["form"].get("sort", "all")
    wanted = {"all": None, "spent": "Expense", "earned": "Income"}[sort]
    records = phone.data["entry"]
    keys = [key for key in reversed(records) if wanted in (None, records[key]["type"])]
    listed = Listing.of("entry", "type", "=", wanted) if wanted else Listing.of("entry")

    def show(name: str) -> None:
        frame["form"]["sort"] = name
        frame["scroll"] = 0

    return View(
        "Entries",
        [line(phone, key, "category") for key in keys],
        tabs=[
            tab(name, name.capitalize(), name == sort, partial(show, name))
            for name in ("all", "spent", "earned")
        ],
        count=len(keys),
        facts=(counted(listed, len(keys)),),
    )


def line(phone: Phone, key: str, attribute: str) -> Widget:
    record = phone.data["entry"][key]
    facts = facts_of("entry", key, record, attribute, "amount", "type")
    hold = partial(phone.open, "delete", key=key, back=1)
    tap = partial(phone.open, "entry", key=key)
    return row(row_id(key), str(record[attribute]), tap, f"{signed(record):+}", facts, hold=hold)


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "entry", "note", partial(line, phone, attribute="note"))


def entry(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["entry"][key]
    names = ("amount", "category", "account", "day", "note")
    return View(
        str(record["type"]),
        [
            text(name.capitalize(), str(record[name]) or "-", *facts_of("entry", key, record, name))
            for name in names
        ],
        bar=[
            icon("edit", partial(phone.open, "form", key=key)),
            icon("delete", partial(phone.open, "delete", key=key, back=2)),
        ],
        facts=facts_of("entry", key, record, "type"),
    )


def form(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["entry"][key] if key else EMPTY
    now = draft(frame, record)
    amount = int(now["amount"])

    def turn() -> None:
        frame["form"]["type"] = TYPES[now["type"] == TYPES[0]]

    def save() -> None:
        phone.close()
        made = {**now, "amount": amount}
        if key:
            record.update(made)
        else:
            phone.add("entry", made)
        phone.toast("Saved")

    unsaved = changed(frame, {**record, "amount": str(record["amount"])})
    return View(
        "Edit" if key else "New",
        [
            field(phone, frame, "amount", str(amount) if amount else "", whole_number),
            row("type", "Type", turn, str(now["type"])),
            picked(phone, "category", now["category"], CATEGORIES),
            picked(phone, "account", now["account"], ACCOUNTS),
            picked(phone, "day", now["day"], DAYS),
            field(phone, frame, "note", now["note"]),
        ],
        bar=[icon("save", save, enabled=amount > 0 and unsaved)],
    )


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    phone.close(args["back"] - 1)
    del phone.data["entry"][args["key"]]
    phone.toast("Deleted")


def budgets(phone: Phone, frame: Frame) -> View:
    records = phone.data["budget"]
    return View(
        "Budgets",
        [
            row(
                str(record["category"]).casefold(),
                str(record["category"]),
                partial(phone.open, "budget", focus="limit", key=key),
                str(record["limit"]) if record["limit"] else "none",
                facts_of("budget", key, record, "category", "limit"),
            )
            for key, record in records.items()
        ],
    )


def budget(phone: Phone, frame: Frame) -> View:
    record = phone.data["budget"][frame["args"]["key"]]
    limit = int(draft(frame, {"limit": record["limit"]})["limit"])

    def save() -> None:
        phone.close()
        record["limit"] = limit

    body = [
        field(phone, frame, "limit", str(limit) if limit else "", whole_number),
        row("save", "Save", save),
        row("cancel", "Cancel", phone.close),
    ]
    return View(f"{record['category']} budget", body, style="dialog")


def accounts(phone: Phone, frame: Frame) -> View:
    records = phone.data["account"]
    derived = {fact[0]: fact for fact in totals(phone.data)[3:]}

    def line(key: str) -> Widget:
        fact, name = derived[f"account/{key}"], str(records[key]["name"])
        return text(name, str(fact[2]), *facts_of("account", key, records[key], "name"), fact)

    return View("Accounts", [line(key) for key in records])


APP = App(
    "money",
    "Money",
    "#2e7d32",
    ("entry", "budget", "account"),
    {
        "root": root,
        "drawer": drawer,
        "search": search,
        "entry": entry,
        "form": form,
        "choose": choose,
        "delete": confirm("Delete entry?", "Delete", deleted),
        "budget": budget,
    },
    totals,
)
