"""Settings: pages of switches and values, devices, networks, permissions of apps, and a search over all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from selfverify.agents.facts import Fact, Listing
from selfverify_phone.system.device import App, Frame, Phone
from selfverify_phone.system.forms import Builder, draft, field, nothing_found, search_field
from selfverify_phone.system.records import Kind, opens, search_icon
from selfverify_phone.system.widgets import View, Widget, counted, row, text

LEVELS = ("Silent", "Low", "Medium", "High")
ACCESS = ("Never", "Ask", "Always")
SETTING, PERMIT, NETWORK = Kind("setting"), Kind("permit"), Kind("network", "name")
DEVICE = Kind("device", "name", leads=True)


@dataclass(frozen=True, slots=True)
class Item:
    """A setting: how it is changed.

    Args:
        name: Its key and the id of its line.
        sort: A switch, a choice among ``options``, a name that is typed, or a value that only can be read.
        options: The values of a choice.
        shown: Whether its page shows the value of a choice; otherwise only the dialog does.
        said: What people read, where that is not the key.
    """

    name: str
    sort: Literal["switch", "choice", "name", "value"] = "switch"
    options: tuple[str, ...] = ()
    shown: bool = True
    said: str = ""

    @property
    def label(self) -> str:
        """What people read."""
        return self.said or self.name.capitalize()

    @property
    def page(self) -> str:
        """The page that it stands on."""
        return next(page for page, items in PAGES.items() if self in items)


def _shown(name: str, *options: str) -> Item:
    return Item(name, "choice", options)


def _hidden(name: str, *options: str) -> Item:
    return Item(name, "choice", options, shown=False)


PAGES: dict[str, tuple[Item, ...]] = {
    "network": (Item("wifi"), Item("data"), Item("airplane"), Item("hotspot")),
    "devices": (Item("bluetooth"),),
    "display": (
        Item("dark"),
        _shown("brightness", "Low", "Medium", "High"),
        _shown("font", "Small", "Medium", "Large"),
        _hidden("sleep", "15 s", "30 s", "1 min", "5 min", "10 min"),
        Item("rotate"),
        Item("night"),
    ),
    "sound": (
        _hidden("media", *LEVELS),
        _hidden("ring", *LEVELS),
        _hidden("tone", "Bell", "Bird", "Chime", "Piano", "Wave"),
        Item("vibrate"),
        Item("quiet"),
    ),
    "battery": (Item("level", "value"), Item("saver"), Item("percent")),
    "apps": (),
    "security": (_hidden("lock", "None", "Swipe", "Pin", "Finger"), Item("find"), Item("backup")),
    "system": (
        _hidden("language", "Danish", "Dutch", "English", "French", "German", "Spanish"),
        Item("hours", said="24 hours"),
        _hidden("zone", "Berlin", "Cairo", "Delhi", "Lima", "London", "Tokyo"),
    ),
    "about": (
        Item("name", "name"),
        Item("model", "value"),
        Item("version", "value"),
        Item("storage", "value"),
    ),
}
ITEMS = {item.name: item for items in PAGES.values() for item in items}
UNITS = {"level": "%", "storage": "GB"}


def set_by(phone: Phone, item: Item) -> Widget:
    """One setting as its page shows it."""
    record = phone.data["setting"][item.name]
    value, facts = str(record["value"]), SETTING.facts(phone, item.name, "value")
    if item.sort == "switch":
        return SETTING.switch(phone, item.name, "value", item.name, item.label)
    if item.sort == "choice":
        tap = opens(phone, "choice", name=item.name)
        return row(item.name, item.label, tap, value if item.shown else "", facts if item.shown else ())
    if item.sort == "name":
        return row(item.name, item.label, opens(phone, "rename", focus="name"), value, facts)
    return text(item.label, f"{value} {UNITS.get(item.name, '')}".strip(), *facts)


def leading(phone: Phone, name: str, screen: str, **args: str) -> Widget:
    """A row that leads to a screen."""
    return row(name, name.capitalize(), opens(phone, screen, **args))


def root(phone: Phone, frame: Frame) -> View:
    body = [leading(phone, name, "page", page=name) for name in PAGES]
    return View("Settings", body, bar=[search_icon(phone)])


def settings(phone: Phone, frame: Frame) -> View:
    name = frame["args"]["page"]
    body = [set_by(phone, item) for item in PAGES[name]]
    facts: tuple[Fact, ...] = ()
    if name == "network":
        body.insert(1, leading(phone, "networks", "networks"))
    if name == "devices":
        body += devices(phone)
        facts = (counted(Listing.of("device"), len(phone.data["device"])),)
    if name == "apps":
        body = [leading(phone, key, "permit", key=key) for key in phone.data["permit"]]
    return View(name.capitalize(), body, facts=facts, count=len(body) - 1 if facts else None)


def choice(phone: Phone, frame: Frame) -> View:
    item = ITEMS[frame["args"]["name"]]
    return SETTING.choices(phone, item.label, item.name, "value", item.options)


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
    found = [item for item in ITEMS.values() if query and query in item.label.casefold()]
    body = [row(item.name, item.label, partial(lead, phone, item)) for item in found]
    return View("Search", [search_field(phone, frame), *(body or [nothing_found()] * bool(query))])


def lead(phone: Phone, item: Item) -> None:
    phone.open("page", page=item.page)
    phone.reveal(item.name)


def networks(phone: Phone, frame: Frame) -> View:
    records = phone.data["network"]

    def join(key: str) -> None:
        for other, record in records.items():
            record["joined"] = other == key

    def near(key: str) -> Widget:
        value = "joined" if records[key]["joined"] else ""
        made = NETWORK.line(phone, key, "name", "joined", value=value)
        made.tap = partial(join, key)
        return made

    return NETWORK.listed("Networks", [near(key) for key in records])


def devices(phone: Phone) -> list[Widget]:
    def known(key: str) -> Widget:
        value = "connected" if phone.data["device"][key]["connected"] else ""
        return DEVICE.line(phone, key, "name", "connected", value=value)

    return [known(key) for key in phone.data["device"]]


def device(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["device"][key]

    def connect() -> None:
        phone.close()
        record["connected"] = not record["connected"]

    verb = "disconnect" if record["connected"] else "connect"
    body = [
        row(verb, verb.capitalize(), connect),
        leading(phone, "forget", "forget", key=key),
        row("cancel", "Cancel", phone.close),
    ]
    return DEVICE.page(phone, key, body, style="dialog")


def permit(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    body = [
        PERMIT.switch(phone, key, "notify", "notify", "Notify"),
        leading(phone, "location", "access", key=key),
        PERMIT.said(phone, key, "size", f"{phone.data['permit'][key]['size']} MB"),
    ]
    return View(key.capitalize(), body)


def access(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    return PERMIT.choices(phone, f"{key.capitalize()} location", key, "location", ACCESS)


SCREENS: dict[str, Builder] = {
    "root": root,
    "page": settings,
    "choice": choice,
    "rename": rename,
    "search": search,
    "networks": networks,
    "device": device,
    "forget": DEVICE.erase("Forget", back=2),
    "permit": permit,
    "access": access,
}
APP = App("settings", "Settings", "#546e7a", ("setting", "network", "device", "permit"), SCREENS)
