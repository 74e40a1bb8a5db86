"""Where the sessions of a pool come from: this process, or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod

import aiohttp

from selfverify.core.environment import Environment
from selfverify.core.errors import ConfigError
from selfverify.remote.environments.remote_environment import RemoteEnvironment, RemoteSettings, base_url
from selfverify.remote.environments.sessions import Factory


class Source(ABC):
    """Makes sessions.

    Args:
        name: What messages call it.
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
        """Return a new session, which is not reset yet. What was opened in vain is closed.

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
        """See `Source`."""
        return self.factory()


class ServerSource(Source):
    """A server of environments.

    Args:
        settings: Where it is.
        sessions: The most sessions that are opened there. Others may use it, too: while it has no room, it
            counts as out of order, and is asked again.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, settings: RemoteSettings, sessions: int) -> None:
        super().__init__(str(base_url(settings.url)), sessions)
        self.settings = settings

    async def open(self) -> Environment:
        """See `Source`."""
        environment = RemoteEnvironment(self.settings)
        try:
            await environment.open()
        except BaseException:
            await environment.close()
            raise
        return environment

    async def healthy(self) -> bool:
        """See `Source`: asks for ``/health``, which stands at the top of a server of ours."""
        address = base_url(self.settings.url)
        patience = aiohttp.ClientTimeout(total=self.settings.health_s)
        async with aiohttp.ClientSession(timeout=patience) as http:
            for place in dict.fromkeys((address, address.origin())):
                async with http.get(place / "health") as reply:
                    if reply.status == 200:
                        return True
        return False
