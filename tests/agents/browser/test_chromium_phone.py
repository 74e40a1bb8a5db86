"""The phone in a real Chromium says what the phone in memory says, call by call."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.phone.test_environment import wild
from selfverify.agents.browser.chromium import missing
from selfverify.agents.browser.chromium_phone import ChromiumPhone
from selfverify.agents.phone.expert import carry_out
from selfverify.agents.phone.phone_environment import PhoneEnvironment, PhoneOptions
from selfverify.agents.phone.phone_tasks import make_task
from selfverify.agents.phone.rendering.picture import picture
from selfverify.agents.phone.templates import TEMPLATES
from selfverify.core.environment import Call, EnvironmentLost, Observation
from selfverify.core.episode import Said
from selfverify.core.errors import DataError
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task as make_recipe_task

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def plain(seen: Observation) -> tuple[Any, ...]:
    return seen.round, seen.text, seen.error, seen.info


async def alike(name: str, calls: list[Call] | int, seed: int = 1, **options: Any) -> None:
    """Play the same calls, or so many random ones, on both phones."""
    there, here = ChromiumPhone(PhoneOptions(**options)), PhoneEnvironment(PhoneOptions(**options))
    task = {"template": name, "hostile": isinstance(calls, int)}
    try:
        assert plain(await there.reset(task, seed)) == plain(await here.reset(task, seed))
        rng = Random(seed)
        for number in range(calls if isinstance(calls, int) else len(calls)):
            call = wild(here, rng) if isinstance(calls, int) else calls[number]
            assert plain(await there.act(call)) == plain(await here.act(call)), (number, call)
        assert await there.state() == await here.state()
    finally:
        await there.close()


def expert(name: str, seed: int, address: Any) -> list[Call]:
    task = make_task(name, seed, "home", False)
    return carry_out(task.phone(), (*task.solve, *task.prove), address)


@pytest.mark.parametrize("address", ["ids", "bounds"])
@pytest.mark.parametrize("name", ["contacts-add", "clock-add-days"])
def test_tasks_are_carried_out(name: str, address: Any) -> None:
    """Taps, texts and swipes reach the phone through the mouse and the keyboard."""
    asyncio.run(alike(name, expert(name, 1, address), address=address))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TEMPLATES)[::5])
def test_many_tasks_are_carried_out(name: str) -> None:
    """Every fifth template; whatever it needs."""
    asyncio.run(alike(name, expert(name, 2, "bounds"), seed=2, address="bounds"))


def test_random_calls_do_the_same() -> None:
    """Also those that are refused, and on screens with hostile texts."""
    asyncio.run(alike("contacts-add", 25, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_random_calls_do_the_same(seed: int) -> None:
    """On other tasks."""
    asyncio.run(alike(list(TEMPLATES)[seed], 200, seed=seed))


def test_pictures_are_chromiums() -> None:
    """Of the phone's size, changed by what is done; words only where they are asked for."""

    async def run() -> None:
        phone = ChromiumPhone(PhoneOptions(show="png", address="bounds", first_screen="given"))
        first = await phone.reset({"template": "contacts-add"}, 1)
        opened = await phone.act(Call("launch", {"app": "contacts"}))
        assert first.text == opened.text == "" and first.images[0].size == opened.images[0].size == (540, 960)
        assert first.images[0].tobytes() != opened.images[0].tobytes()
        inner = phone._inner.phone
        assert inner is not None
        own = picture(inner.look(), inner.beneath(), inner.state["clock"])
        alike = sum(a == b for a, b in zip(_small(own), _small(opened.images[0]), strict=True))
        assert alike > 0.8 * 54 * 96
        await phone.close()

    asyncio.run(run())


def _small(image: Image.Image) -> list[Any]:
    """One pixel of each ten by ten."""
    return [image.getpixel((x, y)) for x in range(5, 540, 10) for y in range(5, 960, 10)]


@pytest.mark.parametrize("text", ["Zoë 北京 👩‍🚀", "<b>&amp;</b> \"q\" 'x' \\", "two\nlines\tand a tab", ""])
def test_texts_are_typed(text: str) -> None:
    """Characters without keys, too; line breaks do not press Enter early."""

    async def run() -> None:
        there, here = ChromiumPhone(), PhoneEnvironment()
        for phone in (there, here):
            await phone.reset({"template": "contacts-add"}, 1)
            await phone.act(Call("launch", {"app": "contacts"}))
            await phone.act(Call("tap", {"id": "later"}))
        look = here.phone.look() if here.phone is not None else None
        assert look is not None
        field = next((w.id for w, _ in look.placed if w.role == "field" or w.id in ("search", "add")), "")
        for call in (Call("tap", {"id": field}), Call("type", {"text_input": text}), Call("enter")):
            assert plain(await there.act(call)) == plain(await here.act(call))
        await there.close()

    asyncio.run(run())


def test_losses_and_ends() -> None:
    """A crashed page is a loss for good; a session needs a reset."""

    async def run() -> None:
        phone = ChromiumPhone()
        with pytest.raises(DataError, match="has not been reset"):
            await phone.act(Call("back"))
        with pytest.raises(DataError, match=r"nowhere"):
            await phone.reset({"template": "nowhere"}, 1)
        await phone.reset({"template": "contacts-add"}, 1)
        with pytest.raises(EnvironmentLost):
            await phone._tab._within(phone._tab._page.goto("chrome://crash"))
        for again in (phone.act(Call("back")), phone.act(Call("back")), phone.state()):
            with pytest.raises(EnvironmentLost, match="has crashed"):
                await again
        await phone.close()
        await phone.close()

    asyncio.run(run())


def test_the_task_can_be_done_on_it() -> None:
    """An expert's conversation earns the same on both."""
    options: dict[str, Any] = {"text": "terse", "agent": {"first_screen": "given"}, "apps": ["clock"]}
    ends = []
    for chromium in (True, False):
        task = make_recipe_task("phone", chromium=chromium, **options)
        assert task.limits.at_once == (16 if chromium else None)
        problem = task.problem("train", 0, 2)
        episode = task.open(problem, 0)
        try:
            episode.begin()
            for number, turn in enumerate(task.demonstrate_turns(problem, np.random.default_rng(0))):
                episode.reply(Said(turn.text, [], Finish.STOP, number))
            ends.append(episode.ending().rewards)
            del ends[-1]["evidence_turns"]  # what waits is asked for its state at the end only
        finally:
            episode.close()
    assert ends[0] == ends[1] and ends[0]["truth"] == 1.0
