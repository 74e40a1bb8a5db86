"""Tasks about the phone's own settings."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.settings_app import ACCESS, ITEMS
from selfverify_phone.contents import words
from selfverify_phone.contents.world import APPS, World
from selfverify_phone.system.forms import option_id
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import Step, either, launch, tap, write

SHELF = Shelf("settings")
OPEN = launch("settings")
SWITCHES = {
    "network": ("wifi", "data", "airplane", "hotspot"),
    "display": ("dark", "rotate", "night"),
    "sound": ("vibrate", "quiet"),
    "battery": ("saver", "percent"),
    "security": ("find", "backup"),
}
NAMES = {
    "wifi": "wifi", "data": "mobile data", "airplane": "airplane mode", "hotspot": "the hotspot",
    "dark": "dark mode", "rotate": "rotate", "night": "night light", "vibrate": "vibrate",
    "quiet": "quiet mode", "saver": "the battery saver", "percent": "the battery percent",
    "find": "find my phone", "backup": "backup", "bluetooth": "bluetooth",
}  # fmt: skip
"""What people call switches."""


def to(name: str) -> Step:
    """From the first page to the page that a setting stands on."""
    item = ITEMS[name]
    return either([tap(item.page)], [tap("search"), write(item.label), tap(name)])


def value(name: str, wanted: bool | str) -> Has:
    return Has(kind="setting", key=name, values={"value": wanted})


def switching(world: World, names: Sequence[str]) -> tuple[str, bool]:
    """A switch among these and what it is to be."""
    name = world.one(names)
    wanted = world.flip()
    world.setting(name, not wanted)
    return name, wanted


def switched(world: World, names: Sequence[str]) -> Drawn:
    name, wanted = switching(world, names)
    says = {"what": NAMES[name], "state": "on" if wanted else "off"}
    return Drawn(says, [value(name, wanted)], [OPEN, to(name), tap(name)])


@SHELF.operation(
    "Turn {state} {what}.",
    "Switch {what} {state}.",
    "I want {what} to be {state}.",
    "Set {what} to {state}.",
)
def network(world: World) -> Drawn:
    return switched(world, SWITCHES["network"])


@SHELF.operation(
    "Turn {state} {what}.",
    "Switch {what} {state}.",
    "I want {what} to be {state}.",
    "Set {what} to {state}.",
)
def display(world: World) -> Drawn:
    return switched(world, SWITCHES["display"])


@SHELF.operation(
    "Turn {what} {state}.",
    "Switch {state} {what}.",
    "Make sure that {what} is {state}.",
)
def battery(world: World) -> Drawn:
    return switched(world, SWITCHES["battery"])


@SHELF.operation(
    "Turn {what} {state}.",
    "Switch {state} {what}.",
    "Make sure that {what} is {state}.",
    held_out=True,
)
def security(world: World) -> Drawn:
    return switched(world, SWITCHES["security"])


@SHELF.operation(
    "Turn bluetooth {state}.",
    "Switch {state} bluetooth.",
    "Set bluetooth to {state}.",
)
def bluetooth(world: World) -> Drawn:
    return switched(world, ("bluetooth",))


def chosen(world: World, name: str, extra: Sequence[Step] = ()) -> Drawn:
    """A choice among a setting's values."""
    item = ITEMS[name]
    wanted = world.one(item.options, str(world.get("setting", name)["value"]))
    pick = tap(option_id(wanted, item.options.index(wanted)))
    prove = [] if item.shown else [tap(name)]
    says = {"value": wanted, "what": item.label.casefold()}
    return Drawn(says, [value(name, wanted)], [OPEN, to(name), tap(name), pick], prove)


@SHELF.operation(
    "Set the {what} to {value}.",
    "Change the {what} of the display to {value}.",
    "Make the {what} {value}.",
)
def look(world: World) -> Drawn:
    return chosen(world, world.one(("brightness", "font")))


@SHELF.operation(
    "Let the display sleep after {value}.",
    "Set the sleep time of the display to {value}.",
    "The display should go to sleep after {value}.",
    hidden=True,
)
def sleep(world: World) -> Drawn:
    return chosen(world, "sleep")


@SHELF.operation(
    "Set the {what} volume to {value}.",
    "Change the volume for {what} to {value}.",
    "Make the {what} sound {value}.",
    hidden=True,
)
def volume(world: World) -> Drawn:
    return chosen(world, world.one(("media", "ring")))


@SHELF.operation(
    "Change the ring tone to {value}.",
    "Set {value} as the tone.",
    "I want to hear the tone {value} when it rings.",
    hidden=True,
)
def tone(world: World) -> Drawn:
    return chosen(world, "tone")


@SHELF.operation(
    "Set the screen lock to {value}.",
    "Change the lock of the phone to {value}.",
    "Use {value} as the lock.",
    hidden=True,
    held_out=True,
)
def lock(world: World) -> Drawn:
    return chosen(world, "lock")


@SHELF.operation(
    "Change the language to {value}.",
    "Set the phone to {value}.",
    "I want to use the phone in {value}.",
    hidden=True,
)
def language(world: World) -> Drawn:
    return chosen(world, "language")


@SHELF.operation(
    "Set the time zone to {value}.",
    "Change the zone of the phone to {value}.",
    "Use the time zone of {value}.",
    hidden=True,
)
def zone(world: World) -> Drawn:
    return chosen(world, "zone")


@SHELF.operation(
    "Rename the phone to {name}.",
    "Change the name of this phone to {name}.",
    "Call this phone {name}.",
)
def rename(world: World) -> Drawn:
    name = world.one(words.PHONES, str(world.get("setting", "name")["value"]))
    steps = [OPEN, to("name"), tap("name"), write(name), tap("save")]
    return Drawn({"name": name}, [value("name", name)], steps)


@SHELF.operation(
    "Join the network {name}.",
    "Connect wifi to the network {name}.",
    "Change to the network {name}.",
)
def join(world: World) -> Drawn:
    key = world.pick("network", joined=False)
    name = str(world.get("network", key)["name"])
    return Drawn(
        {"name": name},
        [Has(kind="network", match={"name": name}, values={"joined": True})],
        [OPEN, tap("network"), tap("networks"), tap(f"r{key}")],
    )


@SHELF.operation(
    "Connect the device {name}.",
    "Connect {name} by bluetooth.",
    "Let the phone connect to the {name}.",
)
def connect(world: World) -> Drawn:
    key = world.pick("device")
    world.get("device", key)["connected"] = False
    name = str(world.get("device", key)["name"])
    return Drawn(
        {"name": name},
        [Has(kind="device", match={"name": name}, values={"connected": True})],
        [OPEN, tap("devices"), tap(f"r{key}"), tap("connect")],
    )


@SHELF.operation(
    "Forget the device {name}.",
    "Remove {name} from the devices.",
    "The phone should forget the {name}.",
)
def forget(world: World) -> Drawn:
    key = world.pick("device")
    name = str(world.get("device", key)["name"])
    return Drawn(
        {"name": name},
        [Absent(kind="device", key=key, match={"name": name})],
        [OPEN, tap("devices"), tap(f"r{key}"), tap("forget"), tap("forget")],
    )


@SHELF.operation(
    "Turn notify {state} for {app}.",
    "Let {app} notify me: {state}.",
    "Switch the setting notify of the app {app} {state}.",
)
def notify(world: World) -> Drawn:
    app = world.one(APPS)
    wanted = not world.get("permit", app)["notify"]
    return Drawn(
        {"app": app, "state": "on" if wanted else "off"},
        [Has(kind="permit", key=app, values={"notify": wanted})],
        [OPEN, tap("apps"), tap(app), tap("notify")],
    )


@SHELF.operation(
    "Set the location of the app {app} to {access}.",
    "Change what {app} may know about my location to {access}.",
    "Location for {app}: {access}.",
    hidden=True,
    held_out=True,
)
def location(world: World) -> Drawn:
    app = world.one(APPS)
    wanted = world.one(ACCESS, str(world.get("permit", app)["location"]))
    return Drawn(
        {"app": app, "access": wanted},
        [Has(kind="permit", key=app, values={"location": wanted})],
        [OPEN, tap("apps"), tap(app), tap("location"), tap(wanted.casefold())],
        [tap("location")],
    )
