"""A pool of environments over many sources: leases, fair waiting, checks of health, replacement.

A lease is one session for one episode, opened for it and closed behind it. The first to ask is served first;
the emptiest healthy source serves. A source that gives no session, or fails its check, is left out until it
is healthy again. When the pool ends, nothing is left open.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field

from selfverify.core.config import Config
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note

Factory = Callable[[], Environment]


T = TypeVar("T")


class Lease(Environment):
    """A session that is lent for one episode; after the lease has ended every call raises.

    Args:
        environment: The environment that is lent.
        source: Where it comes from, for messages.
    """

    def __init__(self, environment: Environment, source: str) -> None:
        self.environment, self.source = environment, source
        self.over = ""
        """Why nothing can be asked any more."""
        self.broken = False
        """Whether the session was lost, or its user has failed."""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        return self.environment.tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        return await self._asked(self.environment.reset(task, seed))

    async def step(self, call: Call) -> StepResult:
        return await self._asked(self.environment.step(call))

    async def submitted(self, message: str) -> None:
        await self._asked(self.environment.submitted(message))

    async def state(self) -> dict[str, Any] | None:
        return await self._asked(self.environment.state())

    async def close(self) -> None:
        """End the session before the lease ends."""
        self.broken, self.over = True, self.over or "the session is closed"
        await self.environment.close()

    async def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Every failure of a call, other than a task that does not exist, breaks the session."""
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


class Source(ABC):
    """Makes the sessions of a pool.

    Args:
        name: Its name in messages.
        sessions: The most sessions at once.
    """

    def __init__(self, name: str, sessions: int) -> None:
        if sessions < 1:
            raise ConfigError(f"{name}: sessions={sessions}, at least one is needed")
        self.name, self.sessions = name, sessions

    async def start(self) -> None:
        """Do what comes before the first session.

        Raises:
            ConfigError: It can never work.
        """

    @abstractmethod
    async def open(self) -> Environment:
        """Return a new session, which is not reset yet. A session that was opened in vain is closed.

        Raises:
            EnvironmentLost: There is none to be had now.
        """

    async def healthy(self) -> bool:
        """Return whether sessions can be had, in a time that the source itself bounds.

        A source that can repair itself does so here. A check that raises is one that has failed.
        """
        return True

    async def close(self) -> None:
        """Give everything back, after the last session."""


class SourceConfig(Config):
    """A source as recipes write it. Each kind has a class; distributions give theirs in ``SOURCES``."""

    kind: str
    sessions: int = Field(8, ge=1)
    """Sessions at the same time."""

    def make(self) -> Source:
        """Return the source.

        Raises:
            ConfigError: An address is none, or a package is not installed.
        """
        raise NotImplementedError


KEYS_VARIABLE = "SELFVERIFY_ENVIRONMENT_KEYS"
"""Environment variable with the keys of those who may ask, apart by commas."""


class EnvironmentServerConfig(Config):
    """Which environments are served, where, and to whom."""

    environments: list[str] = Field(json_schema_extra={"argument": True})
    """An environment: a name that is known here, or name=package.module:factory."""

    options: Path | None = None
    """A YAML file with options of the task whose environment is served, as under `task` in its recipe."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any but this machine's own needs keys."""

    port: int = Field(8000, ge=0, le=65535)
    """The port; 0 takes a free one."""

    sessions: int = Field(64, ge=1)
    """The most sessions of each environment."""

    idle: float = Field(600.0, ge=0.1)
    """Seconds without a request after which a session is closed."""

    busy: float = Field(600.0, ge=0.1)
    """Seconds that one request may take; then its session is lost."""

    keys: Path | None = Field(
        None, description=f"A file with the keys of those who may ask, one a line; or set ${KEYS_VARIABLE}."
    )


class LocalSource(Source):
    """Environments in this process.

    Args:
        factory: Makes an environment.
        sessions: The most at once.
    """

    def __init__(self, factory: Factory, sessions: int, name: str = "this process") -> None:
        super().__init__(name, sessions)
        self.factory = factory

    async def open(self) -> Environment:
        return self.factory()


logger = logging.getLogger("selfverify.environments")

FIRST_RETRY_S = 0.5


async def close_in_time(environment: Environment, name: str, limit_s: float) -> None:
    """Close an environment. One that fails or takes longer than ``limit_s`` is left behind, and a warning
    says so; ``name`` is what it calls the environment."""
    try:
        async with asyncio.timeout(limit_s):
            await environment.close()
    except Exception as error:
        late = isinstance(error, TimeoutError)
        reason = f"it takes longer than {limit_s:g} s" if late else f"{type(error).__name__}: {error}"
        text = f"{name}: an environment could not be closed: {reason}"
        note(logger, "episode_not_closed", text, environment=name, reason=reason)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How patient a pool is.

    Args:
        wait_s: The longest wait for a lease.
        open_s: The longest time of opening a session.
        check_s: The time between two checks of a source. One that is out of order is checked after
            `FIRST_RETRY_S`, and then after twice as long each time, up to this.
        close_s: The longest time of closing a session.
    """

    wait_s: float = 1800.0
    open_s: float = 120.0
    check_s: float = 15.0
    close_s: float = 30.0


@dataclass(slots=True, eq=False)
class _Supply:
    """A source and what is open of it."""

    source: Source
    used: int = 0
    reason: str = "it was never reached"
    fell: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is out of order."""
    retry_s: float = FIRST_RETRY_S


class EnvironmentPool:
    """Lends environments. Use it as an asynchronous context manager, on one event loop.

    Example:
        >>> servers = [ServerSource(RemoteConfig(url), sessions=8) for url in urls]  # doctest: +SKIP
        >>> async with EnvironmentPool(servers) as pool:
        ...     async with pool.lease() as environment:
        ...         first = await environment.reset({"id": "alarm"}, seed=0)

    Args:
        sources: Where sessions come from.
        settings: How patient it is.

    Raises:
        ConfigError: There is no source.
    """

    def __init__(self, sources: Sequence[Source], settings: PoolConfig | None = None) -> None:
        if not sources:
            raise ConfigError("a pool of environments needs a source")
        self.settings = settings or PoolConfig()
        self._places = [_Supply(source) for source in sources]
        self._queue, self._changed = asyncio.Lock(), asyncio.Event()
        self._lent: dict[Lease, _Supply] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._ended = False
        self._counts: Counter[str] = Counter()

    def counters(self) -> dict[str, float]:
        """Return how many sessions were opened and lost, and how often a source was out of order."""
        names = "opened", "lost", "out_of_order"
        return {f"environments/{name}": float(self._counts[name]) for name in names}

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(place.source.start() for place in self._places))
        except BaseException:
            await self.close()
            raise
        self._watches = [asyncio.create_task(self._watch(place)) for place in self._places]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """Lend a session, which is not reset yet.

        Raises:
            EnvironmentLost: No source gave one within `PoolConfig.wait_s`, or the pool has ended.
        """
        lease = await self._take()
        try:
            yield lease
        except BaseException:
            lease.broken = True
            raise
        finally:
            # It is given back even if its holder is cancelled meanwhile.
            await asyncio.shield(self._kept(self._give_back(lease)))

    async def close(self) -> None:
        """End every lease and close every session and source; may be called twice."""
        self._ended = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._changed.set()
        for lease in list(self._lent):
            lease.broken = True
            self._kept(self._give_back(lease))
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(place.source.close() for place in self._places))

    async def _take(self) -> Lease:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.wait_s
        again = False
        while True:
            place = await self._room(deadline, again)
            try:
                async with asyncio.timeout(self.settings.open_s):
                    environment = await place.source.open()
                self._counts["opened"] += 1
            except (EnvironmentLost, TimeoutError) as error:
                self._leave(place)
                late = f"no session within {self.settings.open_s:g} s"
                self._fall(place, str(error) or late)
                again = True
                continue
            except BaseException:
                self._leave(place)
                raise
            place.retry_s = FIRST_RETRY_S
            lease = Lease(environment, place.source.name)
            self._lent[lease] = place
            return lease

    async def _room(self, deadline: float, again: bool) -> _Supply:
        """Return the emptiest place with room, and count it as used. Who comes again does not queue."""
        try:
            async with asyncio.timeout_at(deadline), nullcontext() if again else self._queue:
                while not self._ended:
                    free = [p for p in self._places if not p.fell.is_set() and p.used < p.source.sessions]
                    if free:
                        place = min(free, key=lambda p: p.used / p.source.sessions)
                        place.used += 1
                        return place
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            faults = [f"{p.source.name}: {p.reason}" for p in self._places if p.fell.is_set()]
            busy = len(self._places) - len(faults)
            if busy:
                faults.append(f"{busy} of {len(self._places)} sources are in order, but had no room")
            text = f"no environment within {self.settings.wait_s:g} s: {'; '.join(faults)}"
            raise EnvironmentLost(text[:2000]) from None
        raise EnvironmentLost("the pool of environments has ended")

    def _leave(self, place: _Supply) -> None:
        place.used -= 1
        self._changed.set()

    async def _give_back(self, lease: Lease) -> None:
        """End a lease and close its session."""
        place = self._lent.pop(lease, None)
        if place is None:
            return
        self._counts["lost"] += lease.broken
        lease.over = lease.over or "the lease has ended"
        await close_in_time(lease.environment, place.source.name, self.settings.close_s)
        self._leave(place)

    def _fall(self, place: _Supply, reason: str) -> None:
        """Leave a source out until it is healthy."""
        place.reason = reason
        if not place.fell.is_set():
            place.fell.set()
            self._counts["out_of_order"] += 1
            text = f"{place.source.name} is left out: {reason}"
            note(logger, "environments_out_of_order", text, source=place.source.name, reason=reason)

    async def _watch(self, place: _Supply) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.check_s):
                    await place.fell.wait()
            if not place.fell.is_set() and not await self._healthy(place):
                self._fall(place, "it fails its check")
            while place.fell.is_set():
                await asyncio.sleep(min(place.retry_s, self.settings.check_s))
                place.retry_s *= 2
                if await self._healthy(place):
                    place.fell.clear()
                    self._changed.set()

    async def _healthy(self, place: _Supply) -> bool:
        try:
            return await place.source.healthy()
        except Exception as error:
            logger.debug("%s: its check failed: %r", place.source.name, error)
            return False

    def _kept(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that `close` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
