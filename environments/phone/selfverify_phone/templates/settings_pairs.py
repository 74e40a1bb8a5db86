"""Two things to do with the phone's own settings, which need two exhibits."""

from __future__ import annotations

from selfverify.agents.goals import Has
from selfverify_phone.contents.world import APPS, World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.settings_tasks import (
    NAMES,
    OPEN,
    SWITCHES,
    chosen,
    switching,
    to,
    value,
)
from selfverify_phone.templates.ways import BACK, either, tap

SHELF = Shelf("settings")


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
