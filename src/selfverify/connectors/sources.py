"""Servers of environments as sources of sessions: elsewhere, or in processes of this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

import aiohttp
from yarl import URL

from selfverify.connectors import server
from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment, base_url
from selfverify.connectors.pool import KEYS_VARIABLE, EnvironmentServerConfig, Source
from selfverify.core.episode import Environment, EnvironmentLost
from selfverify.core.errors import ConfigError
from selfverify.core.events import note
from selfverify.core.worker import kill_session, search_path

logger = logging.getLogger("selfverify.environments")


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
        environment = RemoteEnvironment(self.settings)
        await environment.open()
        return environment

    async def healthy(self) -> bool:
        """Ask for ``/health``, which stands at the top of a server of ours."""
        address, limit_s = base_url(self.settings.url), self.settings.health_s
        return await answers(address, limit_s) or await answers(address.origin(), limit_s)


async def answers(address: URL, limit_s: float) -> bool:
    """Return whether a server says below ``address`` that it is well."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit_s)) as http,
        http.get(address / "health") as reply,
    ):
        return reply.status == 200


START_S = 120.0
"""Seconds that a server may take until it listens."""
STOP_S = 10.0
"""Seconds that a server gets to close its sessions."""
MOST_STARTS = 5
STARTS_WITHIN_S = 300.0
"""A server that was started `MOST_STARTS` times within so many seconds stays down until they are over."""


class ProcessSource(Source):
    """A server of one environment in a process of its own, started anew when it dies or hangs.

    It listens on this machine only and asks for a key that is this process's secret. It ends with the pool,
    and when the process that started it dies, however it dies.

    Args:
        environment: A class or function that makes an environment, as ``package.module:name``.
        sessions: The most sessions at once.
        settings: How patient the client is; ``url`` and ``key`` are of no use here.
    """

    def __init__(self, environment: str, sessions: int, settings: RemoteConfig | None = None) -> None:
        super().__init__(f"a server of {environment}", sessions)
        served = [f"environment={environment}"]
        self.serving = EnvironmentServerConfig(environments=served, port=0, sessions=sessions)
        self.settings = settings or RemoteConfig("http://127.0.0.1")
        self._process: asyncio.subprocess.Process | None = None
        self._server: ServerSource | None = None
        self._fails = 0
        self._starts: deque[float] = deque(maxlen=MOST_STARTS)
        self._repairing = asyncio.Lock()

    async def open(self) -> Environment:
        if self._server is None:
            raise EnvironmentLost(f"{self.name} is not running")
        return await self._server.open()

    async def healthy(self) -> bool:
        """Check the server; replace one that has died, or fails three checks in a row."""
        async with self._repairing:
            running = self._process is not None and self._process.returncode is None
            if running and self._server is not None:
                try:
                    if await self._server.healthy():
                        self._fails = 0
                        return True
                except Exception as error:
                    logger.debug("%s: %r", self.name, error)
                self._fails += 1
                if self._fails < 3:
                    return False
            now = time.monotonic()
            if len(self._starts) == MOST_STARTS and now - self._starts[0] < STARTS_WITHIN_S:
                return False
            reason = "it does not answer" if running else "it has died"
            note(logger, "environments_restarted", f"{self.name} is started anew: {reason}", reason=reason)
            await self._kill()
            await self.start()
            return True

    async def close(self) -> None:
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.close()  # tells it to close its sessions and end
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        await self._kill()

    async def start(self) -> None:
        """Start the server; the first start has to work."""
        self._starts.append(time.monotonic())
        self._fails = 0
        key = secrets.token_urlsafe(32)
        command = [sys.executable, "-P", "-m", server.__name__, self.serving.model_dump_json()]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=search_path() | {KEYS_VARIABLE: key},
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        line = b""
        with suppress(TimeoutError, ValueError):
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        try:
            port = int(json.loads(line)["port"])
        except (ValueError, KeyError, TypeError):
            await self._kill()
            raise ConfigError(f"{self.name} does not start; what it printed says why") from None
        settings = replace(self.settings, url=f"http://127.0.0.1:{port}", key=key)
        self._server = ServerSource(settings, self.sessions)

    async def _kill(self) -> None:
        """End the process, with all that it has started, and wait for it."""
        process, self._process, self._server = self._process, None, None
        if process is not None:
            kill_session(process)
            await process.wait()
