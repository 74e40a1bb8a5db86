"""MiniWoB++ in a real Chromium."""

from __future__ import annotations

import asyncio
import importlib.util
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify_miniwob import chromium
from selfverify_miniwob import pages as miniwob
from selfverify_miniwob.chromium import missing
from selfverify_miniwob.environment import BrowserConfig, BrowserEnvironment

LACKING = missing() or ("" if importlib.util.find_spec("miniwob") else "MiniWoB++ is not installed")
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

Play = Callable[[BrowserEnvironment], Awaitable[Any]]


def played(**settings: Any) -> Callable[[Play], Callable[[], None]]:
    """A test of what is done in a session; the browser is gone afterwards."""

    def decorate(work: Play) -> Callable[[], None]:
        async def run() -> None:
            config = BrowserConfig.model_validate({"observations": "text", **settings})
            environment = BrowserEnvironment(config)
            try:
                await work(environment)
            finally:
                await environment.close()
                assert not any(shared.users for shared in chromium.browsers.values())

        def test() -> None:
            asyncio.run(run())

        return test

    return decorate


def call(name: str, **arguments: Any) -> Call:
    return Call(name, arguments)


def find(shown: StepResult, *words: str) -> str:
    """The id of the element whose line has these words."""
    lines = [line for line in shown.text.split("\n") if all(word in line for word in words)]
    assert len(lines) == 1, shown.text
    return lines[0].split("[")[1].split("]")[0]


def first_box(shown: StepResult, *words: str) -> tuple[int, int, int, int]:
    """The place of the first element whose line has these words."""
    line = next((line for line in shown.text.split("\n") if all(word in line for word in words)), "")
    assert line, shown.text
    (left, top), (right, bottom) = (map(int, part.rstrip("]").split(",")) for part in line.rsplit("[", 2)[1:])
    return left, top, right, bottom


def middle(shown: StepResult, *words: str) -> tuple[int, int]:
    left, top, right, bottom = first_box(shown, *words)
    return (left + right) // 2, (top + bottom) // 2


async def another(environment: BrowserEnvironment) -> BrowserEnvironment:
    """Another session in the same browser; both have begun."""
    other = BrowserEnvironment(BrowserConfig(observations="text"))
    for each in (environment, other):
        await each.reset({"task": "click-test"}, 1)
    return other


@played(observations="both")
async def test_a_task_is_done(environment: BrowserEnvironment) -> None:
    """By a click at a place; the reward comes with the end, and then nothing more is done."""
    first = await environment.reset({"task": "click-test-2"}, 1)
    wanted = first.text.split("\n")[0].removeprefix('Task: "Click button ').removesuffix('."')
    x, y = middle(first, "button", f'"{wanted}"')
    state = await environment.state()
    assert state["done"] is False and state["raw_reward"] is None
    last, after = await environment.step(call("click", x=x, y=y)), await environment.step(call("look"))
    state = await environment.state()
    assert (state["done"], state["raw_reward"]) == (True, 1)
    assert state["page"]["tag"] == "BODY"
    assert first.images[0].size == last.images[0].size == (320, 420) and first.round == 0
    assert (first.reward, first.done, first.info["task"]) == (None, False, "click-test-2")
    assert (last.reward, last.done, last.truncated, last.info["raw_reward"]) == (1.0, True, False, 1)
    assert "task is over" in after.error and after.round == 2 and not after.done


@pytest.mark.parametrize(("reward", "earned"), [("positive", 0.0), ("raw", -1.0)])
def test_a_failure_earns_nothing_or_less(reward: str, earned: float) -> None:
    """MiniWoB++ gives -1, which counts as 0 unless the raw reward is wanted."""

    @played(address="ids", reward=reward)
    async def work(environment: BrowserEnvironment) -> None:
        first = await environment.reset({"task": "click-test-2"}, 1)
        wrong = next(w for w in ("ONE", "TWO") if f"button {w}." not in first.text.split("\n")[0])
        last = await environment.step(call("click", id=find(first, "button", f'"{wrong}"')))
        assert last.done and last.info["raw_reward"] == -1 and last.reward == earned

    work()


@played(address="ids")
async def test_typing_and_choosing(environment: BrowserEnvironment) -> None:
    """A form is filled in with the keyboard, a list's option chosen; it can be read afterwards."""
    first = await environment.reset({"task": "login-user"}, 1)
    fields = first.info["fields"] or {}
    name, word = (text.strip('\\"') for text in first.text.split("\n")[0].split('"')[2:5:2])
    assert fields == {}
    await environment.step(call("click", id=find(first, "input_text#username")))
    await environment.step(call("type", text="wrong"))
    await environment.step(call("press", keys="Control+a"))
    await environment.step(call("type", text=name))
    await environment.step(call("press", keys="Tab"))
    filled = await environment.step(call("type", text=word))
    assert f'"{name}"' in filled.text and "password (focused)" in filled.text
    last = await environment.step(call("click", id=find(first, "button#subbtn")))
    assert last.done and last.reward == 1.0 and f'"{name}"' in last.text

    first = await environment.reset({"task": "choose-list"}, 4)
    wanted = first.text.split("\n")[0].removeprefix('Task: "Select ').split(" from the list")[0]
    box = find(first, "select#options")
    refused = await environment.step(call("select", id=box, option="Nowhere"))
    assert "no such option; it has" in refused.error and wanted in refused.error
    nothing = await environment.step(call("select", id=find(first, "button"), option="x"))
    assert "no drop-down list" in nothing.error
    chosen = await environment.step(call("select", id=box, option=wanted))
    assert f'option (selected) "{wanted}"' in chosen.text
    assert (await environment.step(call("click", id=find(first, "button")))).reward == 1.0


@played()
async def test_dragging_and_scrolling(environment: BrowserEnvironment) -> None:
    """With the mouse's button held, and with its wheel."""
    first = await environment.reset({"task": "highlight-text"}, 1)
    x1, y1, x2, y2 = first_box(first, "div#randomText")
    ended = await environment.step(call("drag", x1=x1, y1=y1 + 6, x2=x2 - 1, y2=y2 - 4))
    x, y = middle(first, "button")
    assert ended.error == "" and (await environment.step(call("click", x=x, y=y))).reward == 1.0
    first = await environment.reset({"task": "scroll-text"}, 1)
    x, y = middle(first, "textarea")
    await environment.step(call("scroll", x=x, y=y, direction="down"))
    assert await environment.tab.run("document.querySelector('textarea').scrollTop") > 0


@played(time_limit_s=0.4)
async def test_time_stands_still_between_calls(environment: BrowserEnvironment) -> None:
    """The page's clock goes on by calls only: its limit is a truncation, without a reward."""
    await environment.reset({"task": "click-test"}, 1)
    await asyncio.sleep(0.5)
    shown = [await environment.step(call("wait", seconds=0.1)) for _ in range(4)]
    assert [one.truncated for one in shown] == [False] * 3 + [True]
    assert not shown[3].done and shown[3].reward is None and shown[3].info["reason"] == "timed out"


@played(steps=2)
async def test_the_limit_of_calls(environment: BrowserEnvironment) -> None:
    """Wrong calls count, and the last one is truncated."""
    await environment.reset({"task": "click-test"}, 1)
    calls = call("fly"), call("click", x=9, y=9999), call("look")
    wrong, far, late = [await environment.step(one) for one in calls]
    assert [one.truncated for one in (wrong, far, late)] == [False, True, False]
    assert "no tool 'fly'" in wrong.error and "outside the page" in far.error
    assert late.error == "the session has ended after 2 calls"


@pytest.mark.parametrize("task", ["use-autocomplete", "flight.Alaska-auto"])
def test_equal_seeds_give_equal_pages(task: str) -> None:
    """Texts and pictures, and another seed others."""

    @played(observations="both", scale=1)
    async def work(environment: BrowserEnvironment) -> None:
        first = await environment.reset({"task": task}, 5)
        await environment.step(call("type", text="a"))
        again, other = [await environment.reset({"task": task}, seed) for seed in (5, 6)]
        assert first.text == again.text != other.text
        assert first.images[0].tobytes() == again.images[0].tobytes()

    work()


@played()
async def test_a_crashed_page_is_a_loss_and_the_browser_goes_on(environment: BrowserEnvironment) -> None:
    """Other sessions notice nothing."""
    crashing = await another(environment)
    with pytest.raises(EnvironmentLost):
        await crashing.tab.open("chrome://crash")
    with pytest.raises(EnvironmentLost, match="the page has crashed"):
        await crashing.step(call("look"))
    for again in (crashing.reset({"task": "click-test"}, 1), crashing.state()):
        with pytest.raises(EnvironmentLost, match="the page has crashed"):
            await again
    await crashing.close()
    await crashing.close()
    assert (await environment.step(call("look"))).error == ""


@played()
async def test_a_hanging_page_is_a_loss_and_the_browser_goes_on(environment: BrowserEnvironment) -> None:
    """A script without an end blocks neither other pages nor the event loop."""
    hanging = await another(environment)
    hanging.tab.seconds = 1.0
    busy = asyncio.create_task(hanging.tab.run("(() => { for (;;) {} })()"))
    assert (await environment.step(call("look"))).error == "" and not busy.done()
    with pytest.raises(EnvironmentLost, match="did not answer within 1 seconds"):
        await busy
    with pytest.raises(EnvironmentLost, match="did not answer within 1 seconds"):
        await hanging.step(call("look"))
    await hanging.close()
    assert (await environment.step(call("look"))).error == ""


@played()
async def test_a_dead_browser_is_a_loss_and_another_one_starts(environment: BrowserEnvironment) -> None:
    """For sessions that begin later."""
    other = await another(environment)
    context = await other.tab.chromium.context(9, 9, 1)
    await context.browser.close()
    for each in (other, environment):
        with pytest.raises(EnvironmentLost):
            await each.step(call("look"))
    await other.close()
    third = BrowserEnvironment(BrowserConfig(observations="text"))
    assert (await third.reset({"task": "click-test"}, 1)).text.startswith("Task:")
    await third.close()


@played()
async def test_pages_have_no_network_and_no_memory(environment: BrowserEnvironment) -> None:
    """Neither names nor addresses are reached; what a page has stored is gone with the session."""
    server = await asyncio.start_server(lambda reader, writer: asked.append(1), "127.0.0.1", 0)
    asked: list[int] = []
    port = server.sockets[0].getsockname()[1]
    await environment.reset({"task": "click-test"}, 1)
    for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", "http://example.org/"):
        fetched = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'not reached')"
        assert await environment.tab.run(fetched, url) == "not reached"
    socket = (
        "url => new Promise(done => { const s = new WebSocket(url);"
        " s.onopen = () => done('reached'); s.onerror = () => done('not reached'); })"
    )
    assert await environment.tab.run(socket, f"ws://127.0.0.1:{port}/") == "not reached"
    await environment.tab.run("localStorage.setItem('x', 'y'), document.cookie = 'a=b'")
    await environment.reset({"task": "click-test"}, 1)
    assert await environment.tab.run("localStorage.getItem('x')") is None
    server.close()
    assert asked == []


@played()
async def test_a_cancelled_call_loses_the_session(environment: BrowserEnvironment) -> None:
    """Nobody knows how far it came."""
    await environment.reset({"task": "click-test"}, 1)
    acting = asyncio.create_task(environment.step(call("look")))
    await asyncio.sleep(0)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    with pytest.raises(EnvironmentLost, match="was cancelled"):
        await environment.step(call("look"))


def test_the_page_runs_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first example of the README, and what it prints."""
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    runpy.run_path(str(program))
    assert capsys.readouterr().out == page.partition("prints\n")[2].split("```")[1].lstrip("\n")


@played()
async def test_wrong_tasks_are_named(environment: BrowserEnvironment) -> None:
    """With those that are like them."""
    assert await environment.state() is None
    with pytest.raises(ConfigError, match="reset the environment"):
        await environment.step(call("look"))
    with pytest.raises(DataError, match="no task 'click-tset'; like it are click-test"):
        await environment.reset({"task": "click-tset"}, 1)
    with pytest.raises(DataError, match=r"no task '\.\./core/core'"):
        await environment.reset({"task": "../core/core"}, 1)
    for wrong in ({}, {"task": 3}, {"task": "click-test", "seed": 1}):
        with pytest.raises(DataError, match="a task of the browser is"):
            await environment.reset(wrong, 1)


@played(executable="/bin/sh")
async def test_a_program_that_is_no_browser(environment: BrowserEnvironment) -> None:
    """It is named."""
    with pytest.raises(ConfigError, match=r"sh does not start"):
        await environment.reset({"task": "click-test"}, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_task_begins_and_ends() -> None:
    """Each asks for something, draws the same page for the same seed, and ends when time is up."""

    async def some(tasks: list[str]) -> None:
        environment = BrowserEnvironment(BrowserConfig(observations="both", scale=1, time_limit_s=5))
        try:
            for task in tasks:
                first = await environment.reset({"task": task}, 3)
                assert first.text.startswith('Task: "') and first.images[0].getbbox() is not None, task
                last = await environment.step(call("wait", seconds=6))
                assert last.truncated and last.reward is None and last.info["raw_reward"] == -1, task
                assert (await environment.reset({"task": task}, 3)).text == first.text, task
        finally:
            await environment.close()

    async def all_of_them() -> None:
        tasks = list(miniwob.pages())  # a task takes six seconds, most of them waiting
        await asyncio.gather(*(some(tasks[number::8]) for number in range(8)))

    asyncio.run(all_of_them())
