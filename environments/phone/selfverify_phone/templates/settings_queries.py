"""Questions about the phone's own settings."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.apps.settings_app import ITEMS
from selfverify_phone.contents.world import APPS, World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.settings_tasks import NAMES, OPEN, SWITCHES, to, value
from selfverify_phone.templates.ways import BACK, either, tap

SHELF = Shelf("settings")


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
