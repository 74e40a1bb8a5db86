"""AndroidWorld's server: an Android emulator with 116 tasks in a container, over HTTP.

A server has one device, and so one session at a time. The task of a reset is ``{"task_type": NAME,
"task_idx": 0}``; the seed decides the parameters of the suite's tasks, which the server then makes anew. The
agent acts with AndroidWorld's own actions and sees the screen after each. `status` ends the task, and the
reward is its score.

The server knows no keys and answers one request after another: it belongs on a network that nobody else
reaches.

Source: google-research/android_world, ``server/android_server.py``, and ``suite_utils.py`` for what is
scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

from selfverify.connectors.openenv import RemoteSession, base_url, read_object
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import DataError
from selfverify.tasks.tool_calls import ToolError
from selfverify_android_world.actions import ACTIONS


@dataclass(frozen=True, slots=True)
class AndroidWorldConfig:
    """Where a server of AndroidWorld is, and how patient to be.

    Args:
        url: Its address, such as ``http://127.0.0.1:5000``.
        reset_s: Seconds that each step of a reset may take.
        act_s: Seconds that an action, or reading the screen, may take.
        health_s: Seconds that a check may take. The server answers none while it acts.
        most_bytes: The largest reply. A screen of 1080 x 2400 pixels takes about 30 MB, as it is sent in
            numbers.
        combinations: How many tasks the suite has of each type.
    """

    url: str
    reset_s: float = 300.0
    act_s: float = 90.0
    health_s: float = 30.0
    most_bytes: int = 96 * 2**20
    combinations: int = 1


class AndroidWorld(RemoteSession):
    """A session on a server of AndroidWorld.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, settings: AndroidWorldConfig) -> None:
        self._base = base_url(settings.url)
        super().__init__(str(self._base))
        self.settings = settings
        self._http: aiohttp.ClientSession | None = None
        self._task: dict[str, str] | None = None
        """The task that is set up; it has to be torn down."""
        self._seed: int | None = None
        self._over = False

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return [tool.schema for tool in ACTIONS.values()]

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`. The observation's text is the task's goal.

        Raises:
            DataError: The suite has no such task.
        """
        slow = self.settings.reset_s
        name, index = task.get("task_type"), task.get("task_idx", 0)
        if not isinstance(name, str) or not isinstance(index, int) or isinstance(index, bool):
            raise DataError(
                f"{self._base}: a task is {{'task_type': NAME, 'task_idx': 0}}, not {task!r}"[:300]
            )
        await self._tear_down()
        if seed != self._seed:
            suite = {"n_task_combinations": str(self.settings.combinations), "seed": str(seed)}
            await self._ask("GET", "suite/reinitialize", suite, slow)
            self._seed = seed
        names = (await self._ask("GET", "suite/task_list", {"max_index": "-1"}, slow)).get("task_list")
        if not isinstance(names, list) or name not in names:
            raise DataError(f"{self._base}: there is no task_type {name[:80]!r}")
        if not 0 <= index < self.settings.combinations:
            raise DataError(
                f"{self._base}: task_idx={index}: there are {self.settings.combinations} of each type"
            )
        await self._ask("POST", "reset", {"go_home": "true"}, slow)
        self._task = {"task_type": name, "task_idx": str(index)}
        await self._ask("POST", "task/initialize", self._task, slow)
        goal = (await self._ask("GET", "task/goal", self._task, slow)).get("goal")
        if not isinstance(goal, str) or not goal.strip():
            await self._lose(f"the goal of {name[:80]} is no text: {str(goal)[:40]}")
        screen = await self._screen()
        self._round, self._over = 0, False
        return StepResult(0, goal, [screen], info={**self._task, "instruction": goal})

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        self._check_begun()
        self._round += 1
        tool = ACTIONS.get(call.name)
        if self._over:
            return StepResult(self._round, error="the task is over")
        if tool is None:
            return StepResult(
                self._round, error=f"there is no {call.name[:40]}; there are {', '.join(ACTIONS)}"
            )
        try:
            arguments = tool.fitted(call.arguments)
        except ToolError as error:
            return StepResult(self._round, error=str(error))
        if call.name == "status":
            self._over = True
            return StepResult(
                self._round, images=[await self._screen()], done=True, reward=await self._score()
            )
        action = {"action_type": call.name, **tool.function(None, **arguments)}
        await self._ask("POST", "execute_action", {}, self.settings.act_s, action)
        return StepResult(self._round, images=[await self._screen()])

    async def state(self) -> dict[str, Any] | None:
        """See `Environment`: the score that the task would get now."""
        return {"score": await self._score()} if self._task is not None else None

    async def close(self) -> None:
        """See `Environment`. The emulator goes on, for the next session."""
        with suppress(EnvironmentLost):
            await self._tear_down()
        await super().close()

    async def _tear_down(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            await self._ask("POST", "task/tear_down", task, self.settings.reset_s)

    async def _score(self) -> float:
        assert self._task is not None
        score = (await self._ask("GET", "task/score", self._task, self.settings.act_s)).get("score")
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            await self._lose(f"the score {str(score)[:40]} is no number from 0 to 1")
        return float(score)

    async def _screen(self) -> Image.Image:
        found = await self._ask("GET", "screenshot", {"wait_to_stabilize": "true"}, self.settings.act_s)
        try:
            return await asyncio.to_thread(_picture, found.get("pixels"))
        except (ValueError, TypeError, OverflowError) as error:
            await self._lose(f"the screenshot is none: {error}")

    async def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        limit_s: float,
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return what the server answers; whatever goes wrong loses the session."""
        self._check_kept()
        self._http = self._http or aiohttp.ClientSession()
        async with (
            self._within(limit_s, f"/{path}"),
            self._http.request(method, self._base / path, params=query, json=body) as reply,
        ):
            return await read_object(reply, self.settings.most_bytes)

    async def _cut(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await asyncio.shield(http.close())


def _picture(pixels: Any) -> Image.Image:
    found = np.asarray(pixels)
    if found.ndim != 3 or found.shape[2] != 3 or found.dtype.kind not in "iu" or not found.size:
        raise ValueError(f"numbers {list(found.shape)} of {found.dtype} are no screen")
    if found.min() < 0 or found.max() > 255:
        raise ValueError("a colour is not between 0 and 255")
    return Image.fromarray(found.astype(np.uint8))
