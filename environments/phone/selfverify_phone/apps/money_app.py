"""Bookkeeping: entries with category, account and note, budgets, and totals."""

from __future__ import annotations

from collections.abc import Callable

from selfverify.agents.facts import Fact
from selfverify_phone.apps.calendar_app import DAYS
from selfverify_phone.system.device import App, Data, Frame, Phone, Record
from selfverify_phone.system.forms import Builder, changed, choose, draft, field, whole_number
from selfverify_phone.system.records import Entry, Kind, add_icon, opens, tabs, with_drawer
from selfverify_phone.system.widgets import View, Widget, icon, row, text

TYPES = ("Expense", "Income")
SORTS = {"all": "", "spent": "Expense", "earned": "Income"}
"""The types of entries by the tab that shows them alone."""
CATEGORIES = ("Food", "Fun", "Gift", "Health", "Rent", "Salary", "Travel")
ACCOUNTS = ("Bank", "Card", "Cash")
EMPTY: Record = {
    "type": "Expense", "amount": 0, "category": "Food", "account": "Cash", "day": DAYS[0], "note": ""
}  # fmt: skip
CHOSEN = (Entry("category", CATEGORIES), Entry("account", ACCOUNTS), Entry("day", DAYS), Entry("note"))
ENTRY, BUDGET, ACCOUNT = Kind("entry", "note", leads=True, held="delete"), Kind("budget"), Kind("account")


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


def with_add(view: Callable[[Phone, Frame], View]) -> Builder:
    """A view from which an entry can be added."""

    def build(phone: Phone, frame: Frame) -> View:
        made = view(phone, frame)
        made.floating = add_icon(phone, "form", "amount", key="")
        return made

    return build


def overview(phone: Phone, frame: Frame) -> View:
    return View("May", [text(fact[1].capitalize(), str(fact[2]), fact) for fact in totals(phone.data)[:3]])


def entries(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("sort", "all")
    wanted, records = SORTS[now], phone.data["entry"]
    return ENTRY.listed(
        "Entries",
        [booked(phone, k, "category") for k in reversed(records) if wanted in ("", records[k]["type"])],
        *(("type", "=", wanted) if wanted else ()),
        tabs=tabs(phone, list(SORTS), now, "sort"),
    )


def booked(phone: Phone, key: str, attribute: str = "note") -> Widget:
    value = f"{signed(phone.data['entry'][key]):+}"
    return ENTRY.line(phone, key, attribute, "amount", "type", value=value)


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
            *(chosen.widget(phone, frame, now[chosen.name]) for chosen in CHOSEN),
        ],
        bar=[icon("save", save, enabled=amount > 0 and unsaved)],
    )


def budgets(phone: Phone, frame: Frame) -> View:
    def limited(key: str, record: Record) -> Widget:
        name, limit = str(record["category"]), str(record["limit"] or "none")
        facts = BUDGET.facts(phone, key, "category", "limit")
        return row(name.casefold(), name, opens(phone, "budget", focus="limit", key=key), limit, facts)

    return View("Budgets", [limited(key, record) for key, record in phone.data["budget"].items()])


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
    derived = {fact[0]: fact for fact in totals(phone.data)[3:]}

    def opened(key: str, record: Record) -> Widget:
        fact = derived[f"account/{key}"]
        return text(str(record["name"]), str(fact[2]), *ACCOUNT.facts(phone, key, "name"), fact)

    return View("Accounts", [opened(key, record) for key, record in phone.data["account"].items()])


VIEWS = {"overview": overview, "entries": entries, "budgets": budgets, "accounts": accounts}
SCREENS: dict[str, Builder] = {
    **with_drawer("Money", {name: with_add(view) for name, view in VIEWS.items()}),
    "search": ENTRY.search(booked),
    "entry": ENTRY.sheet("amount", "category", "account", "day", "note", title="type"),
    "form": form,
    "choose": choose,
    "delete": ENTRY.erase(toast="Deleted"),
    "budget": budget,
}
APP = App("money", "Money", "#2e7d32", ("entry", "budget", "account"), SCREENS, totals)
