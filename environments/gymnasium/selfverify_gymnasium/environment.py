"""Any environment with Gymnasium's interface, with one tool: ``step``."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify_gymnasium.spaces import Misfit, plain, schema_of, shown, value_of

T = TypeVar("T")


class OwnThread:
    """Does one thing after another on a thread that does not keep the process from ending.

    It is for an object that blocks and may be used on one thread only, such as a simulator or a browser.

    A thread cannot be stopped. What takes too long goes on behind the scenes, and the thread is left to it:
    it ends when that is done.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Do something after all that was started before; the future has what it returns."""
        future: Future[T] = Future()
        self._work.put((future, function))
        return future

    async def do(self, function: Callable[[], T], limit_s: float) -> T:
        """Do something and wait for it.

        Raises:
            TimeoutError: It takes longer than ``limit_s``.
        """
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(self.start(function))

    def end(self) -> None:
        """End the thread after what was started before."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                with suppress(Exception):
                    future.set_exception(error)
            else:
                future.set_result(result)


class GymnasiumEnvironment(Environment):
    """Runs an environment with Gymnasium's interface on a thread of its own.

    An action space of named parts (`gymnasium.spaces.Dict`) gives ``step`` these arguments; any other one
    gives it the argument ``action``. Images are observations of 8 bits a channel, and what ``render`` returns
    where the render mode is ``rgb_array``. Everything else of an observation is text, in JSON. The task of a
    reset goes to Gymnasium's ``options``. Whatever the environment raises loses it.

    Example:
        >>> environment = GymnasiumEnvironment(lambda: gymnasium.make("FrozenLake-v1",
        render_mode="rgb_array"), ...     action_names=["left", "down", "right", "up"])  # doctest: +SKIP

    Args:
        make: Makes the environment. It is called at once, so what takes long belongs into its ``reset``.
        description: What a step does, for the agent.
        action_names: Names for the values of a `gymnasium.spaces.Discrete`, from its first on; the agent says
            these then.
        state: Reads the ground truth from the environment, as plain JSON.
        make_s: Seconds that making may take.
        reset_s: Seconds that a reset may take.
        act_s: Seconds that a step may take.

    Raises:
        ConfigError: The actions cannot be written as JSON, or the names do not fit.
        EnvironmentLost: It could not be made.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        description: str = "Act, and see what comes of it.",
        action_names: Sequence[str] | None = None,
        state: Callable[[Any], dict[str, Any]] | None = None,
        make_s: float = 60.0,
        reset_s: float = 300.0,
        act_s: float = 60.0,
    ) -> None:
        self._read_state, self._names = state, list(action_names or ())
        self._reset_s, self._act_s = reset_s, act_s
        self._lost = ""
        self._round, self._over = -1, False
        self._thread = OwnThread("gymnasium")
        try:
            self._inner = self._thread.start(make).result(make_s)
        except Exception as error:
            self._thread.end()
            raise EnvironmentLost(f"the environment was not made: {type(error).__name__}: {error}") from error
        self.name = str(self._inner.spec.id if self._inner.spec is not None else type(self._inner).__name__)
        space = self._inner.action_space
        if self._names and not (isinstance(space, spaces.Discrete) and len(self._names) == space.n):
            raise ConfigError(f"{self.name}: {len(self._names)} names of actions do not fit {space}")
        own = {"type": "string", "enum": self._names} if self._names else schema_of(space)
        parameters = {"type": "object", "properties": {"action": own}, "required": ["action"]}
        named = isinstance(space, spaces.Dict)
        function = {"name": "step", "description": description, "parameters": own if named else parameters}
        self._tools = [{"type": "function", "function": function}]

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return self._tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`.

        Raises:
            DataError: The seed is negative, which Gymnasium does not take.
        """
        if seed < 0:
            raise DataError(f"{self.name}: seed={seed} is negative, and Gymnasium takes none that is")

        def work() -> StepResult:
            seen, info = self._inner.reset(seed=seed, options=dict(task) or None)
            return self._observation(0, seen, info)

        first = await self._do(work, self._reset_s, "reset")
        self._round, self._over = 0, False
        return first

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        if self._lost:
            raise EnvironmentLost(self._lost)
        self._round += 1
        try:
            action = self._action(call)
        except Misfit as misfit:
            return StepResult(self._round, error=str(misfit))

        def work() -> StepResult:
            seen, reward, terminated, truncated, info = self._inner.step(action)
            found = self._observation(self._round, seen, info)
            found.reward = float(reward)
            if not math.isfinite(found.reward):
                raise ValueError(f"the reward is {reward}, no finite number")
            found.done, found.truncated = bool(terminated), bool(truncated)
            return found

        found = await self._do(work, self._act_s, "a step")
        self._over = found.done or found.truncated
        return found

    async def state(self) -> dict[str, Any] | None:
        """See `Environment`."""
        read = self._read_state
        if read is None:
            return None
        found: dict[str, Any] = plain(await self._do(lambda: read(self._inner), self._act_s, "the state"))
        return found

    async def close(self) -> None:
        """See `Environment`. One that hangs is left behind on its thread."""
        if not self._lost:
            self._lost = f"{self.name}: the session is closed"
            try:
                await self._thread.do(self._inner.close, self._act_s)
            finally:
                self._thread.end()

    def _action(self, call: Call) -> Any:
        if call.name != "step":
            raise Misfit(f"there is no tool {call.name[:40]}; there is step")
        if self._over:
            raise Misfit("it is over")
        space, given = self._inner.action_space, dict(call.arguments)
        if isinstance(space, spaces.Dict):
            return value_of(space, given, "step")
        if set(given) != {"action"}:
            raise Misfit("step has one argument: action")
        action = given["action"]
        if not self._names:
            return value_of(space, action)
        if action not in self._names:
            raise Misfit(f"there is no action {str(action)[:40]!r}; there are {', '.join(self._names)}")
        return np.int64(self._names.index(action) + int(space.start))

    def _observation(self, round: int, seen: Any, info: Any) -> StepResult:
        text, images = shown(seen)
        if self._inner.render_mode == "rgb_array":
            images += shown(np.asarray(self._inner.render()))[1]
        return StepResult(round, text, images, info=plain(info))

    async def _do(self, work: Callable[[], T], limit_s: float, what: str) -> T:
        if self._lost:
            raise EnvironmentLost(self._lost)
        try:
            return await self._thread.do(work, limit_s)
        except TimeoutError:
            self._lost = f"{self.name}: {what} took longer than {limit_s:g} s"
        except Exception as error:
            self._lost = f"{self.name}: {what} failed: {type(error).__name__}: {error}"
        except BaseException:
            self._lost = f"{self.name}: {what} was broken off"
            raise
        finally:
            if self._lost:
                self._thread.start(self._inner.close)  # once it comes back
                self._thread.end()
        raise EnvironmentLost(self._lost)
