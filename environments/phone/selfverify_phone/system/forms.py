"""Parts of forms and dialogs: fields, choices and questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from selfverify.agents.facts import Scalar
from selfverify_phone.system.device import Frame, Phone, Record
from selfverify_phone.system.widgets import Facts, View, Widget, button, option, text

Check = Callable[[str], str | None]
"""What a field makes of what was typed; None where it does not take it."""
Builder = Callable[[Phone, Frame], View]

_TIME = re.compile(r"(\d{1,2})[:.](\d{2})")


def row_id(key: str) -> str:
    """The id of a record's row: the same wherever and whenever the record is shown."""
    return f"r{key}"


def time_of_day(typed: str) -> str | None:
    """A time as ``07:30``."""
    match = _TIME.fullmatch(typed)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        return None
    return f"{int(match[1]):02}:{match[2]}"


def whole_number(typed: str) -> str | None:
    """A number from 1 to 99999 in digits."""
    digits = typed.lstrip("$ ")
    return (
        str(int(digits)) if digits.isascii() and digits.isdigit() and 0 < int(digits[:9]) < 100_000 else None
    )


def draft(frame: Frame, record: Record) -> Record:
    """A record with what was typed and not saved."""
    return {**record, **frame["form"]}


def changed(frame: Frame, record: Record) -> bool:
    """Whether a form holds anything that is not saved."""
    return any(record.get(name) != value for name, value in frame["form"].items())


def field(
    phone: Phone, frame: Frame, id: str, value: Scalar, check: Check | None = None, facts: Facts = ()
) -> Widget:
    """A field of a form.

    Args:
        phone: The phone.
        frame: The form's frame.
        id: The field's name, under which `draft` has what was typed.
        value: What it holds.
        check: What it makes of what is typed; by default it takes everything.
        facts: What it shows.
    """

    def write(typed: str) -> None:
        clean = typed if check is None else check(typed)
        if clean is None:
            phone.toast(f"This is no {id}")
        else:
            frame["form"][id] = clean

    return Widget(id, "field", id.capitalize(), str(value), write=write, facts=facts)


def picked(phone: Phone, id: str, value: Scalar, options: Iterable[str], facts: Facts = ()) -> Widget:
    """A line of a form whose value is chosen in a dialog (`choose`)."""
    tap = partial(phone.open, "choose", field=id, value=value, options=list(options))
    return Widget(id, "row", id.capitalize(), str(value), tap=tap, facts=facts)


def choose(phone: Phone, frame: Frame) -> View:
    """The dialog in which a form's value is chosen."""
    args = frame["args"]

    def pick(value: str) -> None:
        phone.close()
        phone.frame["form"][args["field"]] = value

    body = options_of(args["options"], str(args["value"]), pick)
    return View(args["field"].capitalize(), body, style="dialog")


def options_of(
    values: Sequence[str], now: str, pick: Callable[[str], None], facts: Facts = ()
) -> list[Widget]:
    """One line for each value to choose from; the one that is chosen now has the facts."""
    names = [option_id(value, i) for i, value in enumerate(values)]
    return [
        option(name, value, value == now, partial(pick, value), *(facts if value == now else ()))
        for name, value in zip(names, values, strict=True)
    ]


def option_id(value: str, place: int) -> str:
    """The id of an option: its word, or its number where it has several words."""
    word = value.casefold()
    return word if word.isascii() and word.isalpha() else f"o{place + 1}"


def confirm(title: str, verb: str, act: Callable[[Phone, dict[str, Any]], None], back: int = 1) -> Builder:
    """A dialog that asks before something is done.

    Args:
        title: The question.
        verb: The word on the button that does it.
        act: What is done, with what the dialog is about; the dialog is closed before.
        back: How many screens are closed, the dialog among them; the dialog's own ``back`` goes before it.
    """

    def build(phone: Phone, frame: Frame) -> View:
        def agreed() -> None:
            phone.close(frame["args"].get("back", back))
            act(phone, frame["args"])

        body = [button(verb.casefold(), verb, agreed), button("cancel", "Cancel", phone.close)]
        return View(title, body, style="dialog")

    return build


def in_order(records: Mapping[str, Record], attribute: str, keys: Iterable[str] | None = None) -> list[str]:
    """The keys of records by an attribute, and of equal ones by age; ``keys`` are all by default."""
    chosen = records if keys is None else keys
    return sorted(chosen, key=lambda key: (str(records[key][attribute]).casefold(), int(key)))


def search_field(phone: Phone, frame: Frame) -> Widget:
    """The field that a search is typed into."""
    return field(phone, frame, "query", frame["form"].get("query", ""))


def nothing_found() -> Widget:
    """What a search without results shows."""
    return text("Nothing found")
