"""Tasks and questions about the phone's own settings."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has
from selfverify_phone.apps.settings_app import ACCESS, ITEMS, LEVELS, PAGES
from selfverify_phone.contents import words
from selfverify_phone.contents.world import APPS, World
from selfverify_phone.templates.base import Drawn, Template, Thing, only, state
from selfverify_phone.templates.patterns import both, choose, delete, in_turn, shorter, switch
from selfverify_phone.templates.questions import ask, both_on, count, more, same_value
from selfverify_phone.templates.ways import BACK, Step, either, tap, write

SWITCHES = {
    page: tuple(item.name for item in PAGES[page] if item.sort == "switch")
    for page in ("network", "display", "sound", "battery", "security")
}
TWO_OF = ("network", "display", "sound", "battery")
"""The pages of which tasks about two switches draw two."""
NAMES = {
    "data": "mobile data", "airplane": "airplane mode", "hotspot": "the hotspot", "dark": "dark mode",
    "night": "night light", "quiet": "quiet mode", "saver": "the battery saver",
    "percent": "the battery percent", "find": "find my phone",
}  # fmt: skip
"""What people call switches, where that is not their key."""
OPTIONS = {name: item.options for name, item in ITEMS.items()}


def to(name: str) -> Step:
    """From the first page to the page that a setting stands on."""
    item = ITEMS[name]
    return either([tap(item.page)], [tap("search"), write(item.label), tap(name)])


def page(world: World, name: str) -> list[Step]:
    return [to(name)]


def dialog(world: World, name: str) -> list[Step]:
    return [to(name), tap(name)]


def one_of(names: tuple[str, ...], says: str = "what") -> Thing:
    """A setting that is drawn among these."""
    return Thing("setting", {says: ""}, way=page, draw=lambda world: world.one(names), called=NAMES)


def setting(name: str) -> Thing:
    return Thing("setting", way=page, draw=only(name))


VOLUMES = ("media", "ring")
NETWORK = Thing("network", {"name": "name"}, [tap("network"), tap("networks")])
DEVICE = Thing("device", {"name": "name"}, [tap("devices")])
PERMIT = Thing(
    "permit", {"app": ""}, [tap("apps")], lambda world, app: [tap(app)], lambda world: world.one(APPS)
)
OTHER_PERMIT = Thing("permit", {"other": ""}, [tap("apps")], PERMIT.way)
LOUD = Thing("setting", {"what": ""}, way=dialog, draw=lambda world: world.one(VOLUMES))
MEDIA = Thing("setting", way=dialog, draw=only("media"))
RING = Thing("setting", draw=only("ring"), again=lambda world, name: [BACK, tap(name)])
DARK = Thing("setting", way=lambda world, name: [tap("display")], draw=only("dark"))
JOIN = switch(NETWORK, "joined", True, "", seek=True)


def rename(world: World) -> Drawn:
    name = world.one(words.PHONES, str(world.get("setting", "name")["value"]))
    needs = [Has(kind="setting", key="name", values={"value": name})]
    return Drawn({"name": name}, needs, [to("name"), tap("name"), write(name), tap("save")])


def two_switches(world: World) -> Drawn:
    pages = world.some(TWO_OF, 2)
    one, two = (switch(one_of(SWITCHES[name]), "value", "drawn").draw(world) for name in pages)
    two.says = {"other": two.says["what"], "also": two.says["state"]}
    return both(one, two, [shorter(one.solve, two.solve)])


def notify_two(world: World) -> Drawn:
    apps, wanted = world.some(APPS, 2), world.flip()
    for app in apps:
        world.get("permit", app)["notify"] = not wanted
    one, two = ([tap(app), tap("notify")] for app in apps)
    return Drawn(
        {"app": apps[0], "other": apps[1], "state": state(wanted)},
        [PERMIT.has(world, app, {"notify": wanted}) for app in apps],
        [tap("apps"), shorter(one, two)],
    )


def joined(world: World) -> Drawn:
    world.use("network")
    name = {bool(r["joined"]): str(r["name"]) for r in world.data["network"].values()}[True]
    others = tuple(str(r["name"]) for r in world.data["network"].values() if not r["joined"])
    needs = [Has(kind="network", match={"joined": True}, values={"name": name})]
    return Drawn({}, needs, NETWORK.lead, answer=Answer(value=name, others=others))


def two_apps(world: World) -> tuple[str, str]:
    one, two = world.some(APPS, 2)
    return one, two


def two_switches_on(world: World) -> tuple[str, str]:
    one, two = (world.one(SWITCHES[name]) for name in world.some(TWO_OF, 2))
    return one, two


TURN = (
    "Turn {state} {what}.",
    "Switch {what} {state}.",
    "I want {what} to be {state}.",
    "Set {what} to {state}.",
)
MAKE_SURE = ("Turn {what} {state}.", "Switch {state} {what}.", "Make sure that {what} is {state}.")
TASKS: dict[str, Template] = {
    "network": switch(one_of(SWITCHES["network"]), "value", "drawn").asked(*TURN),
    "display": switch(one_of(SWITCHES["display"]), "value", "drawn").asked(*TURN),
    "battery": switch(one_of(SWITCHES["battery"]), "value", "drawn").asked(*MAKE_SURE),
    "security": switch(one_of(SWITCHES["security"]), "value", "drawn").asked_in_tests(*MAKE_SURE),
    "bluetooth": switch(one_of(("bluetooth",)), "value", "drawn").asked(
        "Turn bluetooth {state}.", "Switch {state} bluetooth.", "Set bluetooth to {state}."
    ),
    "look": choose(one_of(("brightness", "font")), "value", OPTIONS, hidden=False).asked(
        "Set the {what} to {value}.",
        "Change the {what} of the display to {value}.",
        "Make the {what} {value}.",
    ),
    "sleep": choose(setting("sleep"), "value", OPTIONS).asked(
        "Let the display sleep after {value}.",
        "Set the sleep time of the display to {value}.",
        "The display should go to sleep after {value}.",
    ),
    "volume": choose(one_of(VOLUMES), "value", OPTIONS).asked(
        "Set the {what} volume to {value}.",
        "Change the volume for {what} to {value}.",
        "Make the {what} sound {value}.",
    ),
    "tone": choose(setting("tone"), "value", OPTIONS).asked(
        "Change the ring tone to {value}.",
        "Set {value} as the tone.",
        "I want to hear the tone {value} when it rings.",
    ),
    "lock": choose(setting("lock"), "value", OPTIONS).asked_in_tests(
        "Set the screen lock to {value}.",
        "Change the lock of the phone to {value}.",
        "Use {value} as the lock.",
    ),
    "language": choose(setting("language"), "value", OPTIONS).asked(
        "Change the language to {value}.", "Set the phone to {value}.", "I want to use the phone in {value}."
    ),
    "zone": choose(setting("zone"), "value", OPTIONS).asked(
        "Set the time zone to {value}.",
        "Change the zone of the phone to {value}.",
        "Use the time zone of {value}.",
    ),
    "rename": Template(rename).asked(
        "Rename the phone to {name}.", "Change the name of this phone to {name}.", "Call this phone {name}."
    ),
    "join": JOIN.asked(
        "Join the network {name}.", "Connect wifi to the network {name}.", "Change to the network {name}."
    ),
    "connect": switch(DEVICE, "connected", True, "connect").asked(
        "Connect the device {name}.", "Connect {name} by bluetooth.", "Let the phone connect to the {name}."
    ),
    "forget": delete(DEVICE, "forget", "forget").asked(
        "Forget the device {name}.", "Remove {name} from the devices.", "The phone should forget the {name}."
    ),
    "notify": switch(PERMIT, "notify", "other").asked(
        "Turn notify {state} for {app}.",
        "Let {app} notify me: {state}.",
        "Switch the setting notify of the app {app} {state}.",
    ),
    "location": choose(PERMIT, "location", ACCESS, "access").asked_in_tests(
        "Set the location of the app {app} to {access}.",
        "Change what {app} may know about my location to {access}.",
        "Location for {app}: {access}.",
    ),
    "two-switches": Template(two_switches, exhibits=2).asked(
        "Turn {what} {state} and {other} {also}.",
        "Switch {state} {what} and switch {also} {other}.",
        "Set {what} to {state} and {other} to {also}.",
    ),
    "switch-and-volume": in_turn(
        switch(one_of(SWITCHES["network"]), "value", "drawn"),
        choose(one_of(VOLUMES, "other"), "value", OPTIONS),
        BACK,
    ).asked(
        "Turn {what} {state} and set the {other} volume to {value}.",
        "Set the {other} volume to {value} and switch {what} {state}.",
        "Make the {other} sound {value}, and {what} {state}.",
    ),
    "dark-and-join": in_turn(switch(DARK, "value", True), JOIN, BACK).asked_in_tests(
        "Turn dark mode on and join the network {name}.",
        "Join the network {name} and make the display dark.",
        "Two things: dark mode on; network {name}.",
    ),
    "notify-two": Template(notify_two, exhibits=2).asked(
        "Turn notify {state} for {app} and for {other}.",
        "Let {app} and {other} notify me: {state}.",
        "Switch notify {state} in the settings of the apps {app} and {other}.",
    ),
    "ask-level": ask(setting("level"), "value").asked(
        "What is the battery level?",
        "How full is the battery, in percent?",
        "How many percent does the battery have?",
    ),
    "ask-switch": ask(one_of(sum(SWITCHES.values(), ())), "value").asked(
        "Is {what} on?", "Tell me whether {what} is on, yes or no.", "Is {what} turned on?"
    ),
    "ask-network": Template(joined, "query").asked(
        "Which network is the phone in?",
        "What is the name of the network that is joined?",
        "To which network is wifi connected?",
    ),
    "ask-size": ask(PERMIT, "size").asked(
        "How large is the app {app}?",
        "What is the size of {app} in MB?",
        "How many MB does the app {app} take?",
    ),
    "ask-larger": more(PERMIT, OTHER_PERMIT, "size", two_apps).asked(
        "Which app is larger, {app} or {other}?",
        "Does {app} or {other} take more MB?",
        "{app} or {other}: which of these apps is larger?",
    ),
    "ask-devices": count("device", "connected", True, *DEVICE.lead).asked_in_tests(
        "How many devices are connected?",
        "Count the connected devices.",
        "How many devices is the phone connected to?",
    ),
    "ask-volume": ask(LOUD, "value", "text", LEVELS).asked(
        "What is the volume for {what}?", "How loud is the {what} volume?", "Tell me the {what} volume."
    ),
    "ask-both": both_on(one_of(()), one_of((), "other"), "value", two_switches_on).asked(
        "Are both {what} and {other} on?",
        "Is it true that {what} and {other} are both turned on?",
        "{what} and {other}: are they both on?",
    ),
    "ask-same-volume": same_value(MEDIA, RING, "value").asked(
        "Is the media volume the same as the ring volume?",
        "Are media and ring equally loud?",
        "Have media and ring the same volume?",
    ),
}
