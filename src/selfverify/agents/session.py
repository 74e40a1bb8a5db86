"""Sessions with environments: as ordinary calls, and out of a pool that conversations share."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from selfverify.agents.evidence import Exhibit
from selfverify.agents.facts import Fact, check_facts
from selfverify.connectors.pool import EnvironmentPool, Lease, PoolConfig, Source
from selfverify.core import event_loop
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError

T = TypeVar("T")

STATE_S = 60.0
"""Seconds that an environment may take to tell its state."""


class EnvironmentSession:
    """One environment, used by one thread at a time, and all that it has shown.

    Its methods are ordinary calls; what waits runs on the background loop.

    A thread that is abandoned in the middle of a call is no obstacle: `close` cancels the call and waits for
    its end before it closes the environment, whose methods never run at the same time.

    Args:
        environment: It belongs to the session, which closes it.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.history: list[Exhibit] = []
        self.over = False
        """Whether the environment takes no more calls: the task has ended by itself, or was cut off."""
        self._alone = asyncio.Lock()
        self._last: concurrent.futures.Future[Any] | None = None

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a task anew; see `Environment.reset`."""
        self.history.clear()
        return self._seen(None, self._run(self.environment.reset(task, seed)))

    def act(self, call: Call) -> StepResult:
        """Carry out a call; see `Environment.step`.

        Raises:
            EnvironmentLost: Also where the environment does not count on, or declares facts that are none.
        """
        return self._seen(call, self._run(self.environment.step(call)))

    def submitted(self, message: str) -> None:
        """Say with which message the agent has handed in its work; see `Environment.submitted`."""
        self._run(self.environment.submitted(message))

    def state(self) -> dict[str, Any] | None:
        """The ground truth; see `Environment.state`.

        Raises:
            EnvironmentLost: Also where it takes longer than `STATE_S`: it is read before the environment is
                given back, which must not wait for ever.
        """
        return self._run(self.environment.state(), STATE_S)

    def facts(self) -> Sequence[Fact] | None:
        """All that is so, of the ground truth; None where the environment tells nothing.

        Raises:
            EnvironmentLost: It is lost.
            DataError: Its state has no facts, so that no goal can be checked.
        """
        state = self.state()
        if state is None:
            return None
        try:
            check_facts(state.get("facts"))
        except DataError as error:
            raise DataError(
                f"the environment's state cannot tell whether the task's goal is reached: {error}; leave the "
                "goal out where an environment declares no facts"
            ) from None
        found: Sequence[Fact] = state["facts"]
        return found

    def close(self) -> None:
        """Give the environment back; a call that still runs is cancelled first."""
        if self._last is not None:
            self._last.cancel()
        self._run(self.environment.close())

    @property
    def rounds(self) -> int:
        """How many calls the environment has answered."""
        return self.history[-1].seen.round if self.history else 0

    def _seen(self, call: Call | None, seen: StepResult) -> StepResult:
        if seen.error and seen.round == self.rounds:
            return seen  # refused and not counted: nothing happened that could be evidence
        # The agent names rounds by number, so that no two may have the same.
        if self.history and seen.round <= self.rounds:
            raise EnvironmentLost(
                f"the environment numbers a round {seen.round} after round {self.rounds}; rounds have to rise"
            )
        try:
            check_facts(seen.info.get("facts", ()))
        except DataError as error:
            raise EnvironmentLost(f"the environment's round {seen.round}: {error}") from None
        self.over = seen.done or seen.truncated
        self.history.append(Exhibit(call, seen))
        return seen

    def _run(self, work: Coroutine[Any, Any, T], most_s: float | None = None) -> T:
        if not self.environment.waits:
            return event_loop.finish_inline(work)
        running = event_loop.start(self._one_at_a_time(work))
        self._last = running
        try:
            return running.result(most_s)
        except TimeoutError:
            if running.done():
                raise
            running.cancel()
            raise EnvironmentLost(f"the environment has not answered within {most_s} s") from None

    async def _one_at_a_time(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._alone:
                return await work
        finally:
            # Does nothing to one that has run; one that was cancelled in line was never begun.
            work.close()


GOODBYE_S = 60.0
"""Seconds that closing a pool may take at the end of the process."""


class SharedPool:
    """A pool for all conversations of a process, which share devices or servers.

    It is opened by the first and closed when the process ends.

    Args:
        sources: Makes the sources, when the pool is opened.
        settings: How patient the pool is.
    """

    def __init__(self, sources: Callable[[], Sequence[Source]], settings: PoolConfig | None = None) -> None:
        self.sources, self.settings = sources, settings
        self._pool: EnvironmentPool | None = None
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask_for_tools(self) -> list[dict[str, Any]]:
        """The tools of one session, which is given back.

        Raises:
            EnvironmentLost: There is no session to be had.
        """

        async def ask() -> list[dict[str, Any]]:
            async with (await self.pool()).lease() as lease:
                return [*lease.tools]

        return event_loop.start(ask()).result()

    async def pool(self) -> EnvironmentPool:
        """The pool, opened on the loop that asks first.

        Raises:
            ConfigError: A source can never work.
        """
        self._opening, self._loop = self._opening or asyncio.Lock(), asyncio.get_running_loop()
        async with self._opening:
            if self._pool is None:
                pool = EnvironmentPool(self.sources(), self.settings)
                await pool.__aenter__()
                self._pool = pool
                atexit.register(self.close)
        return self._pool

    def close(self) -> None:
        """Close the pool with all its sessions; may be called twice. With its loop it has ended already."""
        pool, self._pool = self._pool, None
        atexit.unregister(self.close)
        if pool is not None and self._loop is not None and self._loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(pool.close(), self._loop).result(GOODBYE_S)


class PooledEnvironment(Environment):
    """One session of a pool for one conversation: taken with the reset, given back by `close`.

    Args:
        lender: The owner of the pool.
        tools: The tools that all sessions have.
    """

    def __init__(self, lender: SharedPool, tools: Sequence[dict[str, Any]]) -> None:
        self.lender, self._tools = lender, tools
        self._held = AsyncExitStack()
        self._lease: Lease | None = None

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        return self._tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a task. An environment that is lost by its first reset is given back, and another one is
        taken.

        Raises:
            EnvironmentLost: Also where no session is free for longer than the pool waits.
        """
        again = self._lease is not None
        while True:
            if self._lease is None:
                self._lease = await self._held.enter_async_context((await self.lender.pool()).lease())
            try:
                return await self._lease.reset(task, seed)
            except EnvironmentLost:
                if again:
                    raise
            again, self._lease = True, None
            await self._held.aclose()

    async def step(self, call: Call) -> StepResult:
        return await self._taken().step(call)

    async def submitted(self, message: str) -> None:
        await self._taken().submitted(message)

    async def state(self) -> dict[str, Any] | None:
        return None if self._lease is None else await self._lease.state()

    async def close(self) -> None:
        await self._held.aclose()

    def _taken(self) -> Lease:
        if self._lease is None:
            raise EnvironmentLost("the environment was not reset, or its reset has failed")
        return self._lease
