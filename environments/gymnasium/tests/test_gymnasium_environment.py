"""Environments with Gymnasium's interface: actions as JSON, observations as text and images, ends, faults."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import ConfigError, DataError
from selfverify_gymnasium import GymnasiumEnvironment
from selfverify_gymnasium.spaces import Misfit, plain, schema_of, shown, value_of
from tables import read_tables

RGB = np.zeros((4, 6, 3), np.uint8)


class Walk(gymnasium.Env):  # type: ignore[misc,name-defined]
    """A walk along a line; every fault on request."""

    action_space = spaces.Discrete(3, start=1)
    observation_space = spaces.Box(-9, 9, (2,))
    metadata = {"render_modes": ["rgb_array"]}
    last: Walk

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.threads = {threading.current_thread().name}
        self.closed = False
        Walk.last = self

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.options, self.place = options, 0
        return np.array([0.5, float(self.np_random.integers(100))]), {"options": options}

    def step(self, action: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        self.place += int(action) - 2
        if self.options == {"fault": "raise"}:
            raise ValueError("off the map")
        if self.options == {"fault": "hang"}:
            time.sleep(0.5)
        seen = {"view": RGB, "place": np.int32(self.place)}
        reward = self.options["reward"] if "reward" in (self.options or {}) else np.float32(0.25)
        return seen, reward, self.place == 2, self.place == -2, {}

    def render(self) -> Any:
        return np.full((5, 7, 3), 9, np.uint8)

    def close(self) -> None:
        self.closed = True


def run(use: Callable[[GymnasiumEnvironment], Awaitable[None]], make: Any = Walk, **options: Any) -> None:
    async def main() -> None:
        environment = GymnasiumEnvironment(make, **options)
        try:
            await use(environment)
        finally:
            await environment.close()
            await environment.close()

    asyncio.run(main())


def step(action: Any) -> Call:
    return Call("step", {"action": action})


def test_an_episode() -> None:
    async def use(environment: Any) -> None:
        [tool] = environment.tools
        assert tool["function"]["parameters"]["properties"] == {
            "action": {"type": "integer", "minimum": 1, "maximum": 3}
        }
        first = await environment.reset({"level": 2}, seed=5)
        again = await environment.reset({"level": 2}, seed=5)
        assert first.text == again.text and first.info == {"options": {"level": 2}} and first.reward is None
        seen = [await environment.step(step(action)) for action in (3, 3, 3)]
        assert [(s.round, s.text, s.reward, s.done, s.truncated) for s in seen[:2]] == [
            (1, '{"place":1}', 0.25, False, False),
            (2, '{"place":2}', 0.25, True, False),
        ]
        assert [image.size for image in seen[0].images] == [(6, 4)]
        assert (seen[2].round, seen[2].error, seen[2].reward) == (3, "it is over", None)
        await environment.reset({}, seed=5)
        assert (await environment.step(step(1))).text == '{"place":-1}'
        assert (await environment.step(step(1))).truncated
        assert await environment.state() == {"place": -2}

    run(use, state=lambda walk: {"place": np.int64(walk.place)})
    assert Walk.last.closed and Walk.last.threads == {"gymnasium"}


def test_what_the_agent_gets_wrong() -> None:
    async def use(environment: Any) -> None:
        await environment.reset({}, seed=0)
        wrong = (step(0), step(4), step("left"), step(True), step(1.0), step(None), step([1]), step(10**40))
        for number, call in enumerate([*wrong, Call("step"), Call("jump", {"action": 1})], start=1):
            shown = await environment.step(call)
            assert shown.error and shown.round == number
        assert (await environment.step(step(3))).text == '{"place":1}'
        with pytest.raises(DataError, match="negative"):
            await environment.reset({}, seed=-1)

    run(use)


def test_names_and_rendering() -> None:
    async def use(environment: Any) -> None:
        assert environment.tools[0]["function"]["parameters"]["properties"]["action"]["enum"][2] == "right"
        assert (await environment.reset({}, seed=0)).images[0].size == (7, 5)
        assert (await environment.step(step("right"))).text == '{"place":1}'
        assert "there are left, stay, right" in (await environment.step(step(3))).error

    run(use, lambda: Walk("rgb_array"), action_names=["left", "stay", "right"])
    with pytest.raises(ConfigError, match="2 names"):
        GymnasiumEnvironment(Walk, action_names=["left", "right"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"fault": "raise"}, "ValueError: off the map"),
        ({"fault": "hang"}, r"longer than 0\.1 s"),
        ({"reward": float("nan")}, "reward is nan, no finite number"),
        ({"reward": np.float32("inf")}, "reward is inf, no finite number"),
        ({"reward": None}, "TypeError"),
    ],
)
def test_faults_lose_it(task: dict[str, Any], message: str) -> None:
    async def use(environment: Any) -> None:
        await environment.reset(task, seed=0)
        for _ in range(2):
            with pytest.raises(EnvironmentLost, match=message):
                await environment.step(step(1))

    run(use, act_s=0.1)
    deadline = time.monotonic() + 5
    while not Walk.last.closed and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Walk.last.closed


def test_what_cannot_be_made_is_said() -> None:
    def broken() -> Any:
        raise OSError("no display")

    with pytest.raises(EnvironmentLost, match="no display"):
        GymnasiumEnvironment(broken)


SPACES = {
    "discrete": spaces.Discrete(3, start=-1),
    "binary": spaces.MultiBinary(3),
    "many": spaces.MultiDiscrete([2, 5]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -3]]),
    "box": spaces.Box(-1, 2, (2, 2), np.float32),
    "whole": spaces.Box(0, 255, (3,), np.uint8),
    "text": spaces.Text(5, charset="abc"),
    "both": spaces.Dict(
        {"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Text(3), spaces.Box(0, 1, (1,))])}
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_value_of_a_space_survives_json(name: str) -> None:
    space = SPACES[name]
    space.seed(0)
    assert "type" in schema_of(space)
    for _ in range(20):
        value = space.sample()
        back = value_of(space, json.loads(json.dumps(plain(value))))
        assert space.contains(back)
        np.testing.assert_equal(plain(back), plain(value))


def test_each_place_of_a_space_has_its_limits() -> None:
    schema = schema_of(SPACES["many"])
    assert schema == {
        "type": "array", "minItems": 2, "maxItems": 2,
        "prefixItems": [{"type": "integer", "minimum": 0, "maximum": most} for most in (1, 4)],
    }  # fmt: skip
    last = schema_of(SPACES["table"])["prefixItems"][1]["prefixItems"][1]
    assert last == {"type": "integer", "minimum": -3, "maximum": 1}
    with pytest.raises(Misfit, match='"maximum":4'):
        value_of(SPACES["many"], [1, 5])


NO_VALUES: dict[str, list[Any]] = read_tables(Path(__file__).with_suffix(".yaml"))["no_values"]


@pytest.mark.parametrize("name", NO_VALUES)
def test_values_of_no_space_are_refused(name: str) -> None:
    for given in NO_VALUES[name]:
        with pytest.raises(Misfit):
            value_of(SPACES[name], given)


def test_observations_are_shown() -> None:
    assert shown("words") == ("words", [])
    assert shown(np.float32(0.5)) == ("0.5", []) and shown((1, None)) == ("[1,null]", [])
    assert shown(RGB)[1][0].size == (6, 4) and shown(RGB[..., :1])[1][0].mode == "L"
    text, images = shown({"a": RGB, "b": np.arange(3), "c": {"d": np.True_}})
    assert len(images) == 1 and text == '{"b":[0,1,2],"c":{"d":true}}'
    assert plain({1: object(), "n": float("nan"), "big": np.zeros(5000)}) == {
        "1": "(object)",
        "n": "nan",
        "big": "array of float64, [5000]",
    }
    with pytest.raises(ConfigError, match="Graph"):
        schema_of(spaces.Graph(spaces.Discrete(2), None))
