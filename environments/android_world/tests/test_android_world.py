"""AndroidWorld's client against a server with its routes and replies, and its kind of source in recipes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from pydantic import ValidationError

import selfverify_android_world
from environment_servers import hosted
from selfverify.agents.environment_task import EnvironmentAgentsConfig
from selfverify.core import config as config_module
from selfverify.core.config import distributions
from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import DataError
from selfverify_android_world import AndroidWorld, AndroidWorldConfig, AndroidWorldSource
from tables import yaml_cases

TASK = {"task_type": "ClockStopWatch", "task_idx": 0}


class Emulator:
    """The routes of ``server/android_server.py``; what is asked is kept, and ``faults`` answer instead."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.faults: dict[str, Any] = {}
        self.taps = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path.strip("/"), dict(request.query)
        self.asked.append(f"{request.method} {path}")
        if path in self.faults:
            fault = self.faults[path]
            if fault == "hang":
                await asyncio.sleep(5)
            return web.Response(text=fault, status=500 if fault == "crash" else 200)
        match request.method, path:
            case "GET", "suite/reinitialize":
                assert query == {"n_task_combinations": "1", "seed": query["seed"]}
            case "GET", "suite/task_list":
                return web.json_response({"task_list": ["ClockStopWatch", "ContactsAdd"]})
            case "POST", "reset":
                assert query == {"go_home": "true"}
            case "GET", "screenshot":
                assert query == {"wait_to_stabilize": "true"}
                return web.json_response({"pixels": np.full((6, 4, 3), self.taps).tolist()})
            case "POST", "execute_action":
                action = await request.json()
                self.actions.append(action)
                self.taps += action["action_type"] == "click"
            case "GET", "task/goal":
                return web.json_response({"goal": f"Stop the watch {query['task_idx']}."})
            case "GET", "task/score":
                return web.json_response({"score": min(self.taps, 1)})
            case ("POST", "task/initialize" | "task/tear_down") | ("GET", "health"):
                pass
            case _:
                raise web.HTTPNotFound
        return web.json_response({"status": "success"})


def run(use: Callable[[AndroidWorld, Emulator], Awaitable[Any]], **settings: Any) -> Emulator:
    async def main() -> Emulator:
        emulator = Emulator()
        async with AsyncExitStack() as stack:
            address = await hosted(stack, web.route("*", "/{path:.*}", emulator.handle))
            world = AndroidWorld(AndroidWorldConfig(address, **settings))
            stack.push_async_callback(world.close)
            await use(world, emulator)
            await world.close()
        return emulator

    return asyncio.run(main())


def test_an_episode() -> None:
    async def use(world: AndroidWorld, emulator: Emulator) -> None:
        with pytest.raises(DataError, match="reset comes"):
            await world.step(Call("click", {"x": 1, "y": 2}))
        first = await world.reset(TASK, seed=3)
        assert (first.round, first.text) == (0, "Stop the watch 0.")
        assert first.images[0].size == (4, 6)
        assert await world.state() == {"score": 0.0}
        seen = [
            await world.step(Call("click", {"x": 1, "y": 2})),
            await world.step(Call("input_text", {"text": "é", "x": 3, "y": 4})),
            await world.step(Call("answer", {"text": "7"})),
            await world.step(Call("status", {"goal_status": "complete"})),
            await world.step(Call("navigate_home")),
        ]
        assert [s.round for s in seen] == [1, 2, 3, 4, 5]
        assert [(s.done, s.reward) for s in seen[2:4]] == [(False, None), (True, 1.0)]
        assert seen[0].images[0].getpixel((0, 0)) == (1, 1, 1)
        assert seen[4].error == "the task is over"
        await world.reset({"task_type": "ContactsAdd"}, seed=3)
        await world.reset({"task_type": "ContactsAdd"}, seed=4)

    emulator = run(use)
    assert emulator.actions == [
        {"action_type": "click", "x": 1, "y": 2},
        {"action_type": "input_text", "text": "é", "x": 3, "y": 4, "clear_text": False},
        {"action_type": "answer", "text": "7"},
    ]
    counted = {path: emulator.asked.count(path) for path in emulator.asked}
    assert counted["GET suite/reinitialize"] == 2 and "POST close" not in counted
    assert counted["POST task/initialize"] == counted["POST task/tear_down"] == 3


def test_what_the_agent_and_the_caller_get_wrong() -> None:
    async def use(world: AndroidWorld, _: Emulator) -> None:
        for task in ({}, {"task_type": "NoSuch"}, {**TASK, "task_idx": 1}, {**TASK, "task_idx": "0"}):
            with pytest.raises(DataError, match="task"):
                await world.reset(task, seed=0)
        await world.reset(TASK, seed=0)
        wrong: list[tuple[str, dict[str, Any]]] = [("dance", {}), ("click", {"x": 1.5, "y": 2})]
        wrong += [("click", {"x": 1}), ("scroll", {"direction": "in"})]
        for number, call in enumerate((Call(*one) for one in wrong), start=1):
            shown = await world.step(call)
            assert shown.error and shown.round == number and not shown.images

    assert run(use).actions == []


@yaml_cases
def test_faults_lose_the_session(path: str, fault: str, message: str) -> None:
    async def use(world: AndroidWorld, emulator: Emulator) -> None:
        await world.reset(TASK, seed=0)
        emulator.faults[path] = fault.replace("NESTED", "[" * 90_000).replace("BLANK", " " * 200_000)
        done, click = Call("status", {"goal_status": "complete"}), Call("click", {"x": 1, "y": 2})
        call = done if "score" in path else click
        for _ in range(2):
            with pytest.raises(EnvironmentLost, match=message):
                await world.step(call)

    run(use, act_s=0.3, most_bytes=100_000)


def test_a_pool_checks_its_health() -> None:
    async def use(world: AndroidWorld, emulator: Emulator) -> None:
        source = AndroidWorldSource(world.settings)
        assert source.sessions == 1 and await source.healthy()
        emulator.faults["health"] = "crash"
        assert not await source.healthy()

    run(use)


@pytest.mark.parametrize("goal", [None, "", 5, ["Stop the watch."]])
def test_a_task_without_a_goal_in_words_loses_the_session(goal: Any) -> None:
    async def use(world: AndroidWorld, emulator: Emulator) -> None:
        emulator.faults["task/goal"] = json.dumps({"goal": goal})
        with pytest.raises(EnvironmentLost, match="the goal of ClockStopWatch is no text"):
            await world.reset(TASK, seed=0)

    run(use)


# --- the kind android-world of recipes ----------------------------------------------------------------------


def test_it_is_found_where_it_is_installed() -> None:
    assert distributions()["android-world"] is selfverify_android_world


def test_recipes_name_it_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "distributions", lambda: {"x": selfverify_android_world})
    config = EnvironmentAgentsConfig(sources=[{"kind": "android-world", "url": "http://x:1"}])
    [source] = config.sources
    made = source.make()
    assert isinstance(made, AndroidWorldSource) and made.sessions == 1
    assert config.model_dump()["sources"] == [{"kind": "android-world", "sessions": 1, "url": "http://x:1"}]
    for wrong in ({}, {"url": "http://x:1", "sessions": 2}, {"url": "http://x:1", "port": 1}):
        with pytest.raises(ValidationError, match=r"sources\.0\.(url|sessions|port)\n"):
            EnvironmentAgentsConfig(sources=[{"kind": "android-world", **wrong}])
