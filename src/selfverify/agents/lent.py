"""Environments out of a pool, for tasks whose conversations share devices or servers."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from selfverify.connectors.pool import EnvironmentPool, Lease, PoolConfig, Source
from selfverify.core import event_loop
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult

GOODBYE_S = 60.0
"""Seconds that closing a pool may take at the end of the process."""


class SharedPool:
    """A pool for all conversations of a process; it is opened by the first and closed when the process ends.

    Args:
        sources: Makes the sources, when the pool is opened.
        settings: How patient the pool is.
    """

    def __init__(self, sources: Callable[[], Sequence[Source]], settings: PoolConfig | None = None) -> None:
        self.sources, self.settings = sources, settings
        self._pool: EnvironmentPool | None = None
        self._opening: asyncio.Lock | None = None

    def lend(self, tools: Sequence[dict[str, Any]]) -> PooledEnvironment:
        """An environment that takes a session of the pool when it is reset.

        Args:
            tools: The tools that all sessions have.
        """
        return PooledEnvironment(self, tools)

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
        """The pool, opened on the process's loop.

        Raises:
            ConfigError: A source can never work.
        """
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._pool is None:
                pool = EnvironmentPool(self.sources(), self.settings)
                await pool.__aenter__()
                self._pool = pool
                atexit.register(self.close)
        return self._pool

    def close(self) -> None:
        """Close the pool with all its sessions; may be called twice."""
        pool, self._pool = self._pool, None
        atexit.unregister(self.close)
        if pool is not None:
            with suppress(TimeoutError):
                event_loop.start(pool.close()).result(GOODBYE_S)


class PooledEnvironment(Environment):
    """One session of a pool for one conversation: taken with the reset, given back by `close`.

    Args:
        lender: Whose pool it is.
        tools: The tools that all sessions have.
    """

    def __init__(self, lender: SharedPool, tools: Sequence[dict[str, Any]]) -> None:
        self.lender, self._tools = lender, tools
        self._held = AsyncExitStack()
        self._lease: Lease | None = None

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return self._tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`.

        Raises:
            EnvironmentLost: Also where no session is free for longer than the pool waits.
        """
        if self._lease is None:
            self._lease = await self._held.enter_async_context((await self.lender.pool()).lease())
        return await self._lease.reset(task, seed)

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        return await self._taken().step(call)

    async def submitted(self, message: str) -> None:
        """See `Environment`."""
        await self._taken().submitted(message)

    async def state(self) -> dict[str, Any] | None:
        """See `Environment`."""
        return None if self._lease is None else await self._lease.state()

    async def close(self) -> None:
        """See `Environment`."""
        await self._held.aclose()

    def _taken(self) -> Lease:
        if self._lease is None:
            raise EnvironmentLost("the environment was not reset, or its reset has failed")
        return self._lease
