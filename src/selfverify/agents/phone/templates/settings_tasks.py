"""Tasks about the phone's own settings."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.agents.goals import Absent, Has, Listed
from selfverify.agents.phone.apps.settings_app import ACCESS, ITEMS
from selfverify.agents.phone.contents import words
from selfverify.agents.phone.contents.world import APPS, World
from selfverify.agents.phone.system.forms import option_id
from selfverify.agents.phone.templates.base import Drawn, Shelf
from selfverify.agents.phone.templates.ways import BACK, Step, either, launch, tap, write
from selfverify.agents.query_answers import Answer

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


@SHELF.operation(
    "Turn {what} {state} and {other} {also}.",
    "Switch {state} {what} and switch {also} {other}.",
    "Set {what} to {state} and {other} to {also}.",
    exhibits=2,
)
def two_switches(world: World) -> Drawn:
    one, two = world.some(("network", "display", "sound", "battery"), 2)
    name, wanted = switching(world, SWITCHES[one])
    other, also = switching(world, SWITCHES[two])
    says = {"what": NAMES[name], "state": "on" if wanted else "off"}
    says |= {"other": NAMES[other], "also": "on" if also else "off"}
    first, second = [to(name), tap(name)], [to(other), tap(other)]
    return Drawn(
        says,
        [value(name, wanted), value(other, also)],
        [OPEN, either([*first, BACK, *second], [*second, BACK, *first])],
    )


@SHELF.operation(
    "Turn {what} {state} and set the {other} volume to {value}.",
    "Set the {other} volume to {value} and switch {what} {state}.",
    "Make the {other} sound {value}, and {what} {state}.",
    hidden=True,
    exhibits=2,
)
def switch_and_volume(world: World) -> Drawn:
    name, wanted = switching(world, SWITCHES["network"])
    plan = chosen(world, world.one(("media", "ring")))
    return Drawn(
        {"what": NAMES[name], "state": "on" if wanted else "off", "other": plan.says["what"],
         "value": plan.says["value"]},
        [value(name, wanted), *plan.needs],
        [OPEN, to(name), tap(name), BACK, *plan.solve[1:]],
        plan.prove,
    )  # fmt: skip


@SHELF.operation(
    "Turn dark mode on and join the network {name}.",
    "Join the network {name} and make the display dark.",
    "Two things: dark mode on; network {name}.",
    exhibits=2,
    held_out=True,
)
def dark_and_join(world: World) -> Drawn:
    world.setting("dark", False)
    key = world.pick("network", joined=False)
    name = str(world.get("network", key)["name"])
    return Drawn(
        {"name": name},
        [value("dark", True), Has(kind="network", match={"name": name}, values={"joined": True})],
        [OPEN, tap("display"), tap("dark"), BACK, tap("network"), tap("networks"), tap(f"r{key}")],
    )


@SHELF.query(
    "What is the battery level?",
    "How full is the battery, in percent?",
    "How many percent does the battery have?",
)
def ask_level(world: World) -> Drawn:
    level = str(world.get("setting", "level")["value"])
    needs = [Has(kind="setting", key="level", values={"value": int(level)})]
    return Drawn({}, needs, [OPEN, to("level")], answer=Answer(form="number", value=level))


@SHELF.query(
    "Is {what} on?",
    "Tell me whether {what} is on, yes or no.",
    "Is {what} turned on?",
)
def ask_switch(world: World) -> Drawn:
    name = world.one([name for names in SWITCHES.values() for name in names])
    on = bool(world.get("setting", name)["value"])
    answer = Answer(form="yes-no", value="yes" if on else "no")
    return Drawn({"what": NAMES[name]}, [value(name, on)], [OPEN, to(name)], answer=answer)


@SHELF.query(
    "Which network is the phone in?",
    "What is the name of the network that is joined?",
    "To which network is wifi connected?",
)
def ask_network(world: World) -> Drawn:
    world.use("network")
    joined = next(str(r["name"]) for r in world.data["network"].values() if r["joined"])
    others = tuple(str(r["name"]) for r in world.data["network"].values() if not r["joined"])
    return Drawn(
        {},
        [Has(kind="network", match={"joined": True}, values={"name": joined})],
        [OPEN, tap("network"), tap("networks")],
        answer=Answer(value=joined, others=others),
    )


@SHELF.query(
    "How large is the app {app}?",
    "What is the size of {app} in MB?",
    "How many MB does the app {app} take?",
)
def ask_size(world: World) -> Drawn:
    app = world.one(APPS)
    size = int(world.get("permit", app)["size"])
    return Drawn(
        {"app": app},
        [Has(kind="permit", key=app, values={"size": size})],
        [OPEN, tap("apps"), tap(app)],
        answer=Answer(form="number", value=str(size)),
    )


@SHELF.query(
    "Which app is larger, {app} or {other}?",
    "Does {app} or {other} take more MB?",
    "{app} or {other}: which of these apps is larger?",
    exhibits=2,
)
def ask_larger(world: World) -> Drawn:
    app, other = world.some(APPS, 2)
    sizes = {name: int(world.get("permit", name)["size"]) for name in (app, other)}
    larger, smaller = sorted(sizes, key=lambda name: -sizes[name])
    return Drawn(
        {"app": app, "other": other},
        [Has(kind="permit", key=name, values={"size": size}) for name, size in sizes.items()],
        [OPEN, tap("apps"), either([tap(app), BACK, tap(other)], [tap(other), BACK, tap(app)])],
        answer=Answer(value=larger, others=(smaller,)),
    )


@SHELF.query(
    "How many devices are connected?",
    "Count the connected devices.",
    "How many devices is the phone connected to?",
    held_out=True,
)
def ask_devices(world: World) -> Drawn:
    number = sum(bool(record["connected"]) for record in world.data["device"].values())
    return Drawn(
        {},
        [Listed(kind="device", match={"connected": True})],
        [OPEN, tap("devices")],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "What is the volume for {what}?",
    "How loud is the {what} volume?",
    "Tell me the {what} volume.",
)
def ask_volume(world: World) -> Drawn:
    name = world.one(("media", "ring"))
    now = str(world.get("setting", name)["value"])
    others = tuple(word for word in ITEMS[name].options if word != now)
    return Drawn(
        {"what": name},
        [value(name, now)],
        [OPEN, to(name), tap(name)],
        answer=Answer(value=now, others=others),
    )


@SHELF.operation(
    "Turn notify {state} for {app} and for {other}.",
    "Let {app} and {other} notify me: {state}.",
    "Switch notify {state} in the settings of the apps {app} and {other}.",
    exhibits=2,
)
def notify_two(world: World) -> Drawn:
    apps, wanted = world.some(APPS, 2), world.flip()
    for app in apps:
        world.get("permit", app)["notify"] = not wanted
    one, two = ([tap(app), tap("notify")] for app in apps)
    return Drawn(
        {"app": apps[0], "other": apps[1], "state": "on" if wanted else "off"},
        [Has(kind="permit", key=app, values={"notify": wanted}) for app in apps],
        [OPEN, tap("apps"), either([*one, BACK, *two], [*two, BACK, *one])],
    )


@SHELF.query(
    "Are both {what} and {other} on?",
    "Is it true that {what} and {other} are both turned on?",
    "{what} and {other}: are they both on?",
    exhibits=2,
)
def ask_both(world: World) -> Drawn:
    names = [world.one(SWITCHES[page]) for page in world.some(("network", "display", "sound", "battery"), 2)]
    on = world.flip()
    for name in names:
        world.setting(name, True)
    if not on:
        world.setting(world.one(names), False)
    one, two = ([to(name)] for name in names)
    return Drawn(
        {"what": NAMES[names[0]], "other": NAMES[names[1]]},
        [value(name, bool(world.get("setting", name)["value"])) for name in names],
        [OPEN, either([*one, BACK, *two], [*two, BACK, *one])],
        answer=Answer(form="yes-no", value="yes" if on else "no"),
    )


@SHELF.query(
    "Is the media volume the same as the ring volume?",
    "Are media and ring equally loud?",
    "Have media and ring the same volume?",
    exhibits=2,
)
def ask_same_volume(world: World) -> Drawn:
    now = {name: str(world.get("setting", name)["value"]) for name in ("media", "ring")}
    if world.flip():
        now["ring"] = now["media"]
        world.setting("ring", now["ring"])
    return Drawn(
        {},
        [value(name, level) for name, level in now.items()],
        [OPEN, to("media"), tap("media"), BACK, tap("ring")],
        answer=Answer(form="yes-no", value="yes" if now["media"] == now["ring"] else "no"),
    )
