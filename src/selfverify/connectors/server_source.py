"""Environments behind a server of OpenEnv as a source of sessions."""

from __future__ import annotations

import aiohttp

from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment, base_url
from selfverify.connectors.pool import Source
from selfverify.core.episode import Environment


class ServerSource(Source):
    """A server of environments as a source.

    Args:
        settings: Where it is.
        sessions: The most sessions that are opened there. Others may use it, too: while it has no room, it
            counts as out of order, and is asked again.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, settings: RemoteConfig, sessions: int) -> None:
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
