"""Settings: pages of switches and values, devices, networks, permissions of apps, and a search over all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from selfverify.agents.facts import Fact, Listing, Scalar
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import (
    confirm,
    draft,
    facts_of,
    field,
    nothing_found,
    options_of,
    row_id,
    search_field,
)
from selfverify_phone.system.widgets import View, Widget, counted, icon, row, switch, text

LEVELS = ("Silent", "Low", "Medium", "High")
ACCESS = ("Never", "Ask", "Always")


@dataclass(frozen=True, slots=True)
class Item:
    """A setting: the page it stands on, and how it is changed.

    Args:
        name: Its key and the id of its line.
        label: What people read.
        page: The page it stands on.
        sort: A switch, a choice among ``options``, a name that is typed, or a value that only can be read.
        options: The values of a choice.
        shown: Whether its page shows the value of a choice; otherwise only the dialog does.
    """

    name: str
    label: str
    page: str
    sort: Literal["switch", "choice", "name", "value"] = "switch"
    options: tuple[str, ...] = ()
    shown: bool = True


def _choice(name: str, label: str, page: str, *options: str, shown: bool = True) -> Item:
    return Item(name, label, page, "choice", options, shown)


PAGES = ("network", "devices", "display", "sound", "battery", "apps", "security", "system", "about")
ITEMS = {
    item.name: item
    for item in (
        Item("wifi", "Wifi", "network"),
        Item("data", "Data", "network"),
        Item("airplane", "Airplane", "network"),
        Item("hotspot", "Hotspot", "network"),
        Item("bluetooth", "Bluetooth", "devices"),
        Item("dark", "Dark", "display"),
        _choice("brightness", "Brightness", "display", "Low", "Medium", "High"),
        _choice("font", "Font", "display", "Small", "Medium", "Large"),
        _choice("sleep", "Sleep", "display", "15 s", "30 s", "1 min", "5 min", "10 min", shown=False),
        Item("rotate", "Rotate", "display"),
        Item("night", "Night", "display"),
        _choice("media", "Media", "sound", *LEVELS, shown=False),
        _choice("ring", "Ring", "sound", *LEVELS, shown=False),
        _choice("tone", "Tone", "sound", "Bell", "Bird", "Chime", "Piano", "Wave", shown=False),
        Item("vibrate", "Vibrate", "sound"),
        Item("quiet", "Quiet", "sound"),
        Item("level", "Level", "battery", "value"),
        Item("saver", "Saver", "battery"),
        Item("percent", "Percent", "battery"),
        _choice("lock", "Lock", "security", "None", "Swipe", "Pin", "Finger", shown=False),
        Item("find", "Find", "security"),
        Item("backup", "Backup", "security"),
        _choice("language", "Language", "system", "Danish", "Dutch", "English", "French", "German", "Spanish",
                shown=False),
        Item("hours", "24 hours", "system"),
        _choice("zone", "Zone", "system", "Berlin", "Cairo", "Delhi", "Lima", "London", "Tokyo", shown=False),
        Item("name", "Name", "about", "name"),
        Item("model", "Model", "about", "value"),
        Item("version", "Version", "about", "value"),
        Item("storage", "Storage", "about", "value"),
    )
}  # fmt: skip
UNITS = {"level": "%", "storage": "GB"}


def shown(name: str, value: Scalar) -> tuple[Fact, ...]:
    return ((f"setting/{name}", "value", value),)


def line(phone: Phone, item: Item) -> Widget:
    """One setting as its page shows it."""
    record = phone.data["setting"][item.name]
    value = record["value"]
    facts = shown(item.name, value)
    if item.sort == "switch":

        def toggle() -> None:
            record["value"] = not record["value"]

        return switch(item.name, item.label, bool(value), toggle, *facts)
    if item.sort == "choice":
        tap = partial(phone.open, "choice", name=item.name)
        return row(item.name, item.label, tap, str(value) if item.shown else "", facts if item.shown else ())
    if item.sort == "name":
        return row(item.name, item.label, partial(phone.open, "rename", focus="name"), str(value), facts)
    return text(item.label, f"{value} {UNITS.get(item.name, '')}".strip(), *facts)


def root(phone: Phone, frame: Frame) -> View:
    body = [row(page, page.capitalize(), partial(phone.open, "page", page=page)) for page in PAGES]
    return View("Settings", body, bar=[icon("search", partial(phone.open, "search", focus="query"))])


def page(phone: Phone, frame: Frame) -> View:
    name = frame["args"]["page"]
    body = [line(phone, item) for item in ITEMS.values() if item.page == name]
    facts: tuple[Fact, ...] = ()
    if name == "network":
        body.insert(1, row("networks", "Networks", partial(phone.open, "networks")))
    if name == "devices":
        body += devices(phone)
        facts = (counted(Listing.of("device"), len(phone.data["device"])),)
    if name == "apps":
        body = [
            row(key, key.capitalize(), partial(phone.open, "permit", key=key)) for key in phone.data["permit"]
        ]
    return View(name.capitalize(), body, facts=facts, count=len(body) - 1 if facts else None)


def choice(phone: Phone, frame: Frame) -> View:
    item = ITEMS[frame["args"]["name"]]
    record = phone.data["setting"][item.name]
    now = str(record["value"])

    def pick(value: str) -> None:
        phone.close()
        record["value"] = value

    return View(item.label, options_of(item.options, now, pick, shown(item.name, now)), style="dialog")


def rename(phone: Phone, frame: Frame) -> View:
    record = phone.data["setting"]["name"]
    now = draft(frame, {"name": record["value"]})["name"]

    def save() -> None:
        phone.close()
        record["value"] = now

    body = [field(phone, frame, "name", now), row("save", "Save", save if now else None)]
    return View("Phone name", body, style="dialog")


def search(phone: Phone, frame: Frame) -> View:
    query = str(frame["form"].get("query", "")).casefold()
    body = [search_field(phone, frame)]
    if not query:
        return View("Search", body)
    body += [
        row(item.name, item.label, partial(lead, phone, item))
        for item in ITEMS.values()
        if query in item.label.casefold()
    ] or [nothing_found()]
    return View("Search", body)


def lead(phone: Phone, item: Item) -> None:
    phone.open("page", page=item.page)
    phone.reveal(item.name)


def networks(phone: Phone, frame: Frame) -> View:
    records = phone.data["network"]

    def join(key: str) -> None:
        for other, record in records.items():
            record["joined"] = other == key

    return View(
        "Networks",
        [
            row(
                row_id(key),
                str(record["name"]),
                partial(join, key),
                "joined" if record["joined"] else "",
                facts_of("network", key, record, "name", "joined"),
            )
            for key, record in records.items()
        ],
        count=len(records),
        facts=(counted(Listing.of("network"), len(records)),),
    )


def devices(phone: Phone) -> list[Widget]:
    return [
        row(
            row_id(key),
            str(record["name"]),
            partial(phone.open, "device", key=key),
            "connected" if record["connected"] else "",
            facts_of("device", key, record, "name", "connected"),
        )
        for key, record in phone.data["device"].items()
    ]


def device(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["device"][key]

    def connect() -> None:
        phone.close()
        record["connected"] = not record["connected"]

    verb = "disconnect" if record["connected"] else "connect"
    body = [
        row(verb, verb.capitalize(), connect),
        row("forget", "Forget", partial(phone.open, "forget", key=key)),
        row("cancel", "Cancel", phone.close),
    ]
    facts = facts_of("device", key, record, "name")
    return View(str(record["name"]), body, style="dialog", facts=facts)


def forget(phone: Phone, args: dict[str, Any]) -> None:
    del phone.data["device"][args["key"]]


def permit(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record: Record = phone.data["permit"][key]

    def notify() -> None:
        record["notify"] = not record["notify"]

    return View(
        key.capitalize(),
        [
            switch(
                "notify", "Notify", bool(record["notify"]), notify, *facts_of("permit", key, record, "notify")
            ),
            row("location", "Location", partial(phone.open, "access", key=key)),
            text("Size", f"{record['size']} MB", *facts_of("permit", key, record, "size")),
        ],
    )


def access(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["permit"][key]

    def pick(value: str) -> None:
        phone.close()
        record["location"] = value

    facts = facts_of("permit", key, record, "location")
    return View(
        f"{key.capitalize()} location",
        options_of(ACCESS, str(record["location"]), pick, facts),
        style="dialog",
    )


APP = App(
    "settings",
    "Settings",
    "#546e7a",
    ("setting", "network", "device", "permit"),
    {
        "root": root,
        "page": page,
        "choice": choice,
        "rename": rename,
        "search": search,
        "networks": networks,
        "device": device,
        "forget": confirm("Forget device?", "Forget", forget, back=2),
        "permit": permit,
        "access": access,
    },
)
