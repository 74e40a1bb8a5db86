"""HTML and pictures: what stands where, and texts that are nothing but texts."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from selfverify_phone.apps import APPS, switch_on
from selfverify_phone.contents.hostile import TEXTS
from selfverify_phone.contents.world import World
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.rendering.icons import ICONS
from selfverify_phone.rendering.picture import picture
from selfverify_phone.rendering.writing import terse, xml
from selfverify_phone.system.device import Phone
from selfverify_phone.system.glass import HEIGHT, WIDTH
from selfverify_phone.templates import TEMPLATES

SOME = [next(name for name, template in TEMPLATES.items() if template.app == app) for app in list(APPS)[1:]]


def phones(name: str, hostile: bool = False) -> Iterator[Phone]:
    """The phone at every step of an expert."""
    task = make_task(name, 2, hostile=hostile)
    phone = task.phone()
    yield phone
    for call in carry_out(task.phone(), [*task.solve, *task.prove]):
        perform(phone, call)
        yield phone


@pytest.mark.parametrize("name", SOME)
def test_pictures_can_be_drawn(name: str) -> None:
    for phone in phones(name, hostile=True):
        drawn = picture(phone.look(), phone.beneath(), phone.state["clock"])
        assert drawn.size == (WIDTH, HEIGHT) and drawn.mode == "RGB"
        assert len(drawn.getcolors(100_000) or ()) > 10


def test_every_icon_is_known() -> None:
    used = {w.id for name in TEMPLATES for p in phones(name) for w, _ in p.look().placed if w.role == "icon"}
    assert used <= ICONS.keys()


def test_a_switch_looks_as_it_is() -> None:
    phone = switch_on(Phone.fresh(World(Random(0)).data))
    phone.launch("settings")
    phone.tap("network")
    found = phone.look().find("wifi")
    before = picture(phone.look()).crop(found[1])
    phone.tap("wifi")
    assert picture(phone.look()).crop(found[1]).tobytes() != before.tobytes()
    phone.tap("wifi")
    assert picture(phone.look()).crop(found[1]).tobytes() == before.tobytes()


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_deceive_stay_texts(text: str) -> None:
    world = World(Random(0))
    world.get("contact", "1").update(name=text, note=text)
    phone = switch_on(Phone.fresh(world.data))
    phone.launch("contacts")
    phone.open("contact", key="1")
    phone.wait()
    plain = terse(phone.look())
    assert plain.count("\n") == 5 and "\x1b" not in plain
    written = xml(phone.look())
    assert written.count("\n") == 1 + len(phone.look().placed)
    assert "<tool_call>" not in written and "</observation>" not in written
