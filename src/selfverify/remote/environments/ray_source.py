"""Servers of environments on a Ray cluster: Ray finds the machines and starts the processes.

Each source is one actor, which serves its environment on the machine where Ray has put it. A pool over as
many sources as there shall be servers does the rest. An actor that dies, or whose machine goes, is started
anew.

    EnvironmentPool([RaySource("phones:make_phone", sessions=8, actor={"num_cpus": 2}) for _ in range(16)])
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from selfverify.core.environment import Environment, EnvironmentLost
from selfverify.core.errors import ConfigError
from selfverify.core.events import note
from selfverify.remote.bearer_keys import Keys
from selfverify.remote.environments.environment_server import EnvironmentServer, start_server
from selfverify.remote.environments.remote_environment import RemoteSettings
from selfverify.remote.environments.serve_environments import find_environment
from selfverify.remote.environments.server_source import ServerSource
from selfverify.remote.environments.sessions import SessionLimits
from selfverify.remote.environments.sources import Source
from selfverify.remote.listening import address_of

try:
    import ray
except ImportError as error:
    raise ConfigError(f"a Ray cluster needs it: pip install ray ({error})") from None

logger = logging.getLogger("selfverify.environments")


class ServingActor:
    """What runs on the cluster: a server on a free port, for those who know the key."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def serve(self, environment: str, sessions: int, key: str) -> str:
        """Serve an environment, named as ``package.module:factory``; return the server's address."""
        named = dict([find_environment(f"environment={environment}")])
        server = EnvironmentServer(named, SessionLimits(sessions), Keys([key]))
        port = await start_server(server, self._stack, "0.0.0.0")
        return address_of(ray.util.get_node_ip_address(), port)

    async def stop(self) -> None:
        """Close every session."""
        await self._stack.aclose()


class RaySource(Source):
    """A server of one environment in an actor of a Ray cluster, to which `ray.init` has connected.

    Args:
        environment: What makes an environment, as ``package.module:name``, on the cluster's machines.
        sessions: The most sessions at once.
        settings: How patient the client is; ``url`` and ``key`` are of no use here.
        actor: What Ray is asked for, such as ``{"num_cpus": 2, "resources": {"kvm": 1}}``.
        start_s: Seconds that a start may take, waiting for room on the cluster included.
        stop_s: Seconds that the server gets to close its sessions.
    """

    def __init__(
        self,
        environment: str,
        sessions: int,
        settings: RemoteSettings | None = None,
        actor: Mapping[str, Any] | None = None,
        start_s: float = 300.0,
        stop_s: float = 10.0,
    ) -> None:
        super().__init__(f"an actor with {environment}", sessions)
        self.environment, self.asked = environment, dict(actor or {})
        self.settings = settings or RemoteSettings("http://127.0.0.1")
        self.start_s, self.stop_s = start_s, stop_s
        self.restarts = 0
        self._actor: Any = None
        self._server: ServerSource | None = None

    async def start(self) -> None:
        """See `Source`."""
        if not ray.is_initialized():
            raise ConfigError("there is no Ray cluster: call ray.init() first")
        await self._start()

    async def open(self) -> Environment:
        """See `Source`."""
        if self._server is None:
            raise EnvironmentLost(f"{self.name} is not running")
        return await self._server.open()

    async def healthy(self) -> bool:
        """See `Source`: an actor that has died, or whose server does not answer, is replaced."""
        if self._server is not None:
            with suppress(Exception):
                if await self._server.healthy():
                    return True
        note(logger, "environments_restarted", f"{self.name} is started anew: it does not answer")
        self._kill()
        self.restarts += 1
        await self._start()
        return True

    async def close(self) -> None:
        """See `Source`."""
        if self._actor is not None:
            with suppress(Exception):
                async with asyncio.timeout(self.stop_s):
                    await self._actor.stop.remote()
        self._kill()

    async def _start(self) -> None:
        key = secrets.token_urlsafe(32)
        self._actor = ray.remote(ServingActor).options(**self.asked).remote()
        try:
            async with asyncio.timeout(self.start_s):
                url = await self._actor.serve.remote(self.environment, self.sessions, key)
        except Exception as error:
            self._kill()
            late = f"Ray has no room for it within {self.start_s:g} s"
            reason = late if isinstance(error, TimeoutError) else str(error)[-500:]
            raise ConfigError(f"{self.name} does not start: {reason}") from None
        settings = replace(self.settings, url=f"{url}/environment", key=key)
        self._server = ServerSource(settings, self.sessions)

    def _kill(self) -> None:
        actor, self._actor, self._server = self._actor, None, None
        if actor is not None:
            ray.kill(actor)
