"""A session that is lent out of a pool for one episode."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError

T = TypeVar("T")


class Lease(Environment):
    """An environment until the lease ends; afterwards every call raises.

    Args:
        environment: What is lent.
        source: Where it comes from, for messages.
        uses: Which lease of its session this is, from 1.
    """

    def __init__(self, environment: Environment, source: str, uses: int) -> None:
        self.environment, self.source, self.uses = environment, source, uses
        self.over = ""
        """Why nothing can be asked any more."""
        self.broken = False
        """Whether the session cannot be lent again."""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return self.environment.tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`."""
        return await self._asked(self.environment.reset(task, seed))

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        return await self._asked(self.environment.step(call))

    async def submitted(self, message: str) -> None:
        """See `Environment`."""
        await self._asked(self.environment.submitted(message))

    async def state(self) -> dict[str, Any] | None:
        """See `Environment`."""
        return await self._asked(self.environment.state())

    async def close(self) -> None:
        """End the session before the lease ends."""
        self.broken, self.over = True, self.over or "the session is closed"
        await self.environment.close()

    async def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Whatever breaks a call off, other than a task that does not exist, breaks the session."""
        if self.over:
            work.close()
            raise EnvironmentLost(f"{self.source}: {self.over}")
        try:
            return await work
        except DataError:
            raise
        except BaseException:
            self.broken = True
            raise
