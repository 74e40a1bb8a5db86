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


TASKS: dict[str, Template] = {
    "network": switch(one_of(SWITCHES["network"]), "value", "drawn"),
    "display": switch(one_of(SWITCHES["display"]), "value", "drawn"),
    "battery": switch(one_of(SWITCHES["battery"]), "value", "drawn"),
    "security": switch(one_of(SWITCHES["security"]), "value", "drawn").kept_for_tests(),
    "bluetooth": switch(one_of(("bluetooth",)), "value", "drawn"),
    "look": choose(one_of(("brightness", "font")), "value", OPTIONS, hidden=False),
    "sleep": choose(setting("sleep"), "value", OPTIONS),
    "volume": choose(one_of(VOLUMES), "value", OPTIONS),
    "tone": choose(setting("tone"), "value", OPTIONS),
    "lock": choose(setting("lock"), "value", OPTIONS).kept_for_tests(),
    "language": choose(setting("language"), "value", OPTIONS),
    "zone": choose(setting("zone"), "value", OPTIONS),
    "rename": Template(rename),
    "join": JOIN,
    "connect": switch(DEVICE, "connected", True, "connect"),
    "forget": delete(DEVICE, "forget", "forget"),
    "notify": switch(PERMIT, "notify", "other"),
    "location": choose(PERMIT, "location", ACCESS, "access").kept_for_tests(),
    "two-switches": Template(two_switches, exhibits=2),
    "switch-and-volume": in_turn(
        switch(one_of(SWITCHES["network"]), "value", "drawn"),
        choose(one_of(VOLUMES, "other"), "value", OPTIONS),
        BACK,
    ),
    "dark-and-join": in_turn(switch(DARK, "value", True), JOIN, BACK).kept_for_tests(),
    "notify-two": Template(notify_two, exhibits=2),
    "ask-level": ask(setting("level"), "value"),
    "ask-switch": ask(one_of(sum(SWITCHES.values(), ())), "value"),
    "ask-network": Template(joined, "query"),
    "ask-size": ask(PERMIT, "size"),
    "ask-larger": more(PERMIT, OTHER_PERMIT, "size", two_apps),
    "ask-devices": count("device", "connected", True, *DEVICE.lead).kept_for_tests(),
    "ask-volume": ask(LOUD, "value", "text", LEVELS),
    "ask-both": both_on(one_of(()), one_of((), "other"), "value", two_switches_on),
    "ask-same-volume": same_value(MEDIA, RING, "value"),
}
