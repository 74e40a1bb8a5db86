"""Lists, pages, forms and dialogs of records, which apps are put together from.

An app says of each `Kind` of its records what a line, a page and a form of it show. What is made for a screen
of its own is a `Builder`; the others are parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from selfverify.agents.facts import Listing, Scalar
from selfverify_phone.system import forms
from selfverify_phone.system.device import Frame, Phone, Record
from selfverify_phone.system.forms import Builder, Check
from selfverify_phone.system.widgets import Act, Facts, View, Widget, counted, icon, row, switch, tab, text


def opens(phone: Phone, screen: str, **args: Any) -> Act:
    """A tap that leads to another screen."""
    return partial(phone.open, screen, **args)


def search_icon(phone: Phone) -> Widget:
    """Leads to the search."""
    return icon("search", opens(phone, "search", focus="query"))


def add_icon(phone: Phone, screen: str, focus: str = "", **args: Any) -> Widget:
    """Leads to the form of something new."""
    return icon("add", opens(phone, screen, focus=focus, **args))


def edit_icon(phone: Phone, key: str, **args: Any) -> Widget:
    """Leads to a record's form."""
    return icon("edit", opens(phone, "form", key=key, **args))


def delete_icon(phone: Phone, key: str, **args: Any) -> Widget:
    """Leads to the question whether a record is to be deleted."""
    return icon("delete", opens(phone, "delete", key=key, **args))


def flip(record: Record, attribute: str) -> None:
    """Turn what is on off, and what is off on."""
    record[attribute] = not record[attribute]


# Several views of one screen.


def turn(phone: Phone, slot: str, name: str) -> None:
    """Show another view of the screen that is seen."""
    phone.frame["form"][slot] = name
    phone.frame["scroll"] = 0


def tabs(phone: Phone, names: Sequence[str], now: str, slot: str = "view") -> list[Widget]:
    """One tab for each view."""
    return [tab(name, name.capitalize(), name == now, partial(turn, phone, slot, name)) for name in names]


def tabbed(views: Mapping[str, Builder]) -> Builder:
    """A screen of several views, with a tab for each; the first is shown at first."""

    def build(phone: Phone, frame: Frame) -> View:
        now = frame["form"].get("view", next(iter(views)))
        made = views[now](phone, frame)
        made.tabs = tabs(phone, list(views), now)
        return made

    return build


def with_drawer(title: str, views: Mapping[str, Builder]) -> dict[str, Builder]:
    """A first screen of several views, and the drawer in which they are chosen."""

    def root(phone: Phone, frame: Frame) -> View:
        made = views[frame["form"].get("view", next(iter(views)))](phone, frame)
        made.bar = [icon("menu", opens(phone, "drawer")), search_icon(phone)]
        return made

    def go(phone: Phone, name: str) -> None:
        phone.close()
        turn(phone, "view", name)

    def drawer(phone: Phone, frame: Frame) -> View:
        return View(title, [row(n, n.capitalize(), partial(go, phone, n)) for n in views], style="drawer")

    return {"root": root, "drawer": drawer}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a form.

    Args:
        name: The attribute.
        options: What is chosen from; without them it is typed.
        check: What it makes of what is typed; by default it takes everything.
    """

    name: str
    options: Sequence[str] = ()
    check: Check | None = None

    def widget(self, phone: Phone, frame: Frame, value: Scalar, facts: Facts = ()) -> Widget:
        """The line with what it holds."""
        if self.options:
            return forms.picked(phone, self.name, value, self.options, facts)
        return forms.field(phone, frame, self.name, value, self.check, facts)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of records, and how they are shown.

    Args:
        kind: What facts call it, and the screen that a tap on a row leads to, where rows lead on.
        name: The attribute by which people call a record.
        leads: Whether rows lead on.
        held: The screen that a long press on a row leads to, if any.
    """

    kind: str
    name: str = "value"
    leads: bool = False
    held: str = ""

    # Values.

    def facts(self, phone: Phone, key: str, *attributes: str) -> Facts:
        """The facts of some attributes of a record."""
        record = phone.data[self.kind][key]
        return tuple((f"{self.kind}/{key}", attribute, record[attribute]) for attribute in attributes)

    def said(self, phone: Phone, key: str, attribute: str, shown: str = "") -> Widget:
        """A value to read, as it is or as it is ``shown``."""
        value = shown or str(phone.data[self.kind][key][attribute]) or "-"
        return text(attribute.capitalize(), value, *self.facts(phone, key, attribute))

    def switch(self, phone: Phone, key: str, attribute: str, id: str, label: str) -> Widget:
        """A switch that flips a value."""
        record = phone.data[self.kind][key]
        tap = partial(flip, record, attribute)
        return switch(id, label, bool(record[attribute]), tap, *self.facts(phone, key, attribute))

    def icon(self, phone: Phone, key: str, attribute: str, id: str) -> Widget:
        """An icon that flips a value."""
        record = phone.data[self.kind][key]
        tap = partial(flip, record, attribute)
        return icon(id, tap, on=bool(record[attribute]), facts=self.facts(phone, key, attribute))

    def choices(self, phone: Phone, title: str, key: str, attribute: str, values: Sequence[str]) -> View:
        """The dialog in which a value is chosen, which counts at once."""
        record = phone.data[self.kind][key]

        def pick(value: str) -> None:
            phone.close()
            record[attribute] = value

        options = forms.options_of(values, str(record[attribute]), pick, self.facts(phone, key, attribute))
        return View(title, options, style="dialog")

    # Lists.

    def line(
        self, phone: Phone, key: str, *shown: str, value: str = "", part: Widget | None = None
    ) -> Widget:
        """A record's row.

        Args:
            phone: The phone.
            key: The record's key.
            shown: The attributes that it shows; the first is its label.
            value: What stands below.
            part: A switch at its end.
        """
        label, facts = str(phone.data[self.kind][key][shown[0]]), self.facts(phone, key, *shown)
        back = {"back": 1} if self.held == "delete" else {}
        tap = opens(phone, self.kind, key=key) if self.leads else None
        hold = opens(phone, self.held, key=key, **back) if self.held else None
        return row(forms.row_id(key), label, tap, value, facts, hold=hold, part=part)

    def listed(
        self, title: str, lines: list[Widget], *condition: str, empty: Widget | None = None, **more: Any
    ) -> View:
        """A list with its count.

        Args:
            title: The heading.
            lines: One for each record.
            condition: The attribute, operator and value of a list that has not all (`Listing`).
            empty: What is shown where there are none.
            more: What else there is; see `View`.
        """
        facts = (*more.pop("facts", ()), counted(Listing.of(self.kind, *condition), len(lines)))
        body = lines or ([] if empty is None else [empty])
        return View(title, body, count=len(lines), facts=facts, **more)

    def search(self, line: Callable[[Phone, str], Widget] | None = None) -> Builder:
        """The screen that searches the names for what is typed; ``line`` makes the row of a key, if it shows
        more than the name."""

        def build(phone: Phone, frame: Frame) -> View:
            field, typed = forms.search_field(phone, frame), str(frame["form"].get("query", ""))
            if not typed:
                return View("Search", [field])
            records = phone.data[self.kind]
            hits = [k for k, r in records.items() if typed.casefold() in str(r[self.name]).casefold()]
            keys = forms.in_order(records, self.name, hits)
            lines = [line(phone, k) if line is not None else self.line(phone, k, self.name) for k in keys]
            found = self.listed("Search", lines, self.name, "~", typed, empty=forms.nothing_found())
            found.body.insert(0, field)
            return found

        return build

    # A record's page, form, menu and end.

    def page(self, phone: Phone, key: str, body: list[Widget], **more: Any) -> View:
        """A record's page, which its name stands over."""
        title, facts = str(phone.data[self.kind][key][self.name]), self.facts(phone, key, self.name)
        return View(title, body, facts=facts, **more)

    def sheet(self, *attributes: str, flag: str = "", title: str = "", **args: Any) -> Builder:
        """A record's page to read, from which it is edited and deleted.

        Args:
            attributes: What is read.
            flag: What an icon of this name flips, if any.
            title: What stands over it, where it is not the name.
            args: Further arguments of the form.
        """

        def build(phone: Phone, frame: Frame) -> View:
            key = frame["args"]["key"]
            flags = [self.icon(phone, key, flag, flag)] if flag else []
            bar = [edit_icon(phone, key, **args), *flags, delete_icon(phone, key, back=2)]
            body = [self.said(phone, key, attribute) for attribute in attributes]
            return replace(self, name=title or self.name).page(phone, key, body, bar=bar)

        return build

    def keep(self, phone: Phone, key: str, made: Record) -> None:
        """Close a form and put what it holds into its record, or a new one where there is no ``key``."""
        phone.close()
        if key:
            phone.data[self.kind][key].update(made)
        else:
            phone.reveal(forms.row_id(phone.add(self.kind, made)))
        phone.toast("Saved")

    def form(
        self,
        empty: Record,
        *entries: Entry,
        first: Callable[[Phone, Record, Record], None] = lambda phone, record, now: None,
    ) -> Builder:
        """The form of a record, or of a new one where the screen's ``key`` is empty.

        Args:
            empty: A new record; the screen's arguments may give it other values.
            entries: The lines; nothing is saved while the first is empty.
            first: What is done before a record is saved, with it and what it becomes.
        """

        def build(phone: Phone, frame: Frame) -> View:
            args = frame["args"]
            key = args["key"]
            given = {name: value for name, value in args.items() if name in empty}
            record = phone.data[self.kind][key] if key else {**empty, **given}
            now = forms.draft(frame, record)

            def save() -> None:
                first(phone, record, now)
                self.keep(phone, key, now)

            ready = bool(now[entries[0].name]) and forms.changed(frame, record)
            body = [entry.widget(phone, frame, now[entry.name]) for entry in entries]
            return View("Edit" if key else "New", body, bar=[icon("save", save, enabled=ready)])

        return build

    def menu(self, **args: Any) -> Builder:
        """The menu of a row that is pressed long; ``args`` are the form's further arguments."""

        def build(phone: Phone, frame: Frame) -> View:
            key = frame["args"]["key"]

            def lead(screen: str, more: dict[str, Any]) -> None:
                phone.close()
                phone.open(screen, key=key, **more)

            body = [
                row("edit", "Edit", partial(lead, "form", args)),
                row("delete", "Delete", partial(lead, "delete", {"back": 1})),
            ]
            return View(str(phone.data[self.kind][key][self.name]), body, style="dialog")

        return build

    def erase(
        self,
        verb: str = "Delete",
        called: str = "",
        back: int = 1,
        toast: str = "",
        after: Callable[[Phone, Record], None] = lambda phone, record: None,
    ) -> Builder:
        """The question before a record is deleted.

        Args:
            verb: What is done.
            called: What people call the kind, where that is another word.
            back: How many screens are closed, unless the screen's arguments say so.
            toast: What is said then.
            after: What follows from its end.
        """

        def agreed(phone: Phone, args: dict[str, Any]) -> None:
            after(phone, phone.data[self.kind].pop(args["key"]))
            if toast:
                phone.toast(toast)

        return forms.confirm(f"{verb} {called or self.kind}?", verb, agreed, back)
