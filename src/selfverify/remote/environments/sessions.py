"""The sessions of a server: bounded in number, each with its own environment, closed when nobody asks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.events import note
from selfverify.remote.environments.content import ContentLimits

logger = logging.getLogger("selfverify.environments")

Factory = Callable[[], Environment]
T = TypeVar("T")


class NoRoom(SelfVerifyError):
    """A server has as many sessions as it may have."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a server allows.

    Args:
        sessions: The most sessions at once, of each environment.
        idle_s: Seconds without a request after which a session is closed.
        busy_s: Seconds that one request may take. Then its session is lost.
        close_s: Seconds that closing an environment may take. Then it is left behind, and the log says so.
        content: What a client may send.
    """

    sessions: int = 64
    idle_s: float = 600.0
    busy_s: float = 600.0
    close_s: float = 30.0
    content: ContentLimits = field(default_factory=lambda: ContentLimits(message_bytes=4 * 2**20))


class Session:
    """One client's environment. Requests wait for each other.

    Args:
        environment: The environment.
        limits: How long a request may take.
        begins: Whether the client begins its task with a tool (`mcp_rpc.BEGIN`), having no other way.
        task: The task and the seed, where they are fixed.
    """

    def __init__(
        self,
        environment: Environment,
        limits: SessionLimits,
        begins: bool = False,
        task: tuple[dict[str, Any], int] | None = None,
    ) -> None:
        self.environment, self.limits, self.begins, self.task = environment, limits, begins, task
        self.id = secrets.token_urlsafe(24)
        self.used = time.monotonic()
        self.begun = False
        self.attached = False
        """Whether a socket is the session's, which then sees to its end."""
        self.lost = ""
        """Why nothing can be asked any more."""
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a request is on its way."""
        return self._lock.locked()

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`."""
        self.begun = False
        shown = await self._do(lambda: self.environment.reset(task, seed), "reset")
        self.begun = True
        return shown

    async def act(self, call: Call) -> StepResult:
        """See `Environment.step`.

        Raises:
            DataError: The session has not been reset to a task yet.
        """
        self._check_begun()
        return await self._do(lambda: self.environment.step(call), call.name)

    async def submitted(self, message: str) -> None:
        """See `Environment.submitted`.

        Raises:
            DataError: The session has not been reset to a task yet.
        """
        self._check_begun()
        await self._do(lambda: self.environment.submitted(message), "submitted")

    async def state(self) -> dict[str, Any] | None:
        """See `Environment.state`."""
        return await self._do(self.environment.state, "state")

    async def written(self, observation: StepResult, write: Callable[[StepResult], T]) -> T:
        """Return an observation as it is sent, images on another thread.

        Raises:
            EnvironmentLost: It cannot be sent, which is the environment's fault.
        """
        try:
            return await asyncio.to_thread(write, observation) if observation.images else write(observation)
        except Exception as error:
            self.lost = f"what the environment shows cannot be sent: {type(error).__name__}: {error}"
            raise EnvironmentLost(self.lost) from None

    def _check_begun(self) -> None:
        if not self.begun:
            raise DataError("there is no task yet: reset comes before the first call")

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        """Do one thing after what was asked before.

        Raises:
            EnvironmentLost: The environment is lost, has raised what it must not raise, or takes too long.
            DataError: As the environment.
        """
        async with self._lock:
            if self.lost:
                raise EnvironmentLost(self.lost)
            try:
                async with asyncio.timeout(self.limits.busy_s):
                    return await work()
            except DataError:
                raise
            except TimeoutError:
                self.lost = f"{what[:40]} took longer than {self.limits.busy_s:g} s"
            except EnvironmentLost as error:
                self.lost = str(error)
            except asyncio.CancelledError:
                self.lost = f"{what[:40]} was broken off"
                raise
            except Exception as error:
                logger.exception("the environment has raised what it must not raise")
                self.lost = (
                    f"the environment has failed with {type(error).__name__}; the server's log says more"
                )
            finally:
                self.used = time.monotonic()
            raise EnvironmentLost(self.lost)


class SessionTable:
    """The sessions of one environment.

    Args:
        name: The environment's name, for messages.
        factory: Makes an environment, at once; what takes long belongs into its `Environment.reset`.
        limits: What is allowed.
    """

    def __init__(self, name: str, factory: Factory, limits: SessionLimits) -> None:
        self.name, self.factory, self.limits = name, factory, limits
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, begins: bool = False, task: tuple[dict[str, Any], int] | None = None) -> Session:
        """Make a session.

        Raises:
            NoRoom: There are as many as may be.
            EnvironmentLost: No environment can be made.
        """
        if len(self._open) >= self.limits.sessions:
            raise NoRoom(f"{self.name}: all {self.limits.sessions} sessions are in use")
        try:
            made = self.factory()
        except Exception as error:
            logger.exception("%s: no environment can be made", self.name)
            raise EnvironmentLost(
                f"{self.name}: no environment can be made: {type(error).__name__}; the server's log says more"
            ) from None
        session = Session(made, self.limits, begins, task)
        self._open[session.id] = session
        return session

    def find(self, name: str) -> Session | None:
        """Return the session of a name that `Session.id` gave."""
        return self._open.get(name)

    async def close(self, session: Session) -> None:
        """Close a session. Never raises; an environment that does not close in time is left behind."""
        if self._open.pop(session.id, None) is None:
            return
        session.lost = session.lost or "the session is closed"
        reason = ""
        try:
            async with asyncio.timeout(self.limits.close_s):
                await session.environment.close()
        except TimeoutError:
            reason = f"it takes longer than {self.limits.close_s:g} s"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            text = f"an environment {self.name} could not be closed: {reason}"
            note(logger, "episode_not_closed", text, environment=self.name, reason=reason)

    async def close_all(self) -> None:
        """Close every session."""
        await asyncio.gather(*(self.close(session) for session in list(self._open.values())))

    async def sweep(self) -> None:
        """Close the sessions of which nobody has asked anything for too long; sockets watch their own."""
        late = time.monotonic() - self.limits.idle_s
        idle = [s for s in self._open.values() if s.used < late and not s.attached and not s.busy]
        await asyncio.gather(*(self.close(session) for session in idle))
