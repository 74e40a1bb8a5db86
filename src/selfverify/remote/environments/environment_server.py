"""A server of environments: OpenEnv's wire at ``/ws``, the Model Context Protocol at ``/mcp``.

Every session has an environment of its own; many sessions share a process. A server of several environments
has each below its name, such as ``/phone/ws``; the only one of a server is also at ``/ws``.

Without keys everybody who reaches the port may ask. So a server without keys listens on this machine only. No
server answers browsers: a page that somebody has open could ask it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from selfverify.core.errors import ConfigError

try:  # before our own modules that need it as well
    from aiohttp import web
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

from selfverify.remote.bearer_keys import Keys
from selfverify.remote.environments.mcp_http import McpEndpoint
from selfverify.remote.environments.serving_settings import KEYS_VARIABLE
from selfverify.remote.environments.session_socket import SocketEndpoint
from selfverify.remote.environments.sessions import Factory, SessionLimits, SessionTable
from selfverify.remote.listening import open_port

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class EnvironmentServer:
    """Serves environments to many clients.

    Args:
        environments: By name, what makes an environment.
        limits: How many sessions each environment may have, how large and how long requests may be.
        keys: The keys of those who may ask; without any, everybody may who can reach the port.

    Raises:
        ConfigError: There is no environment, or a name cannot stand in an address.
    """

    def __init__(
        self,
        environments: Mapping[str, Factory],
        limits: SessionLimits | None = None,
        keys: Keys | None = None,
    ) -> None:
        wrong = [name for name in environments if not name.replace("-", "").replace("_", "").isalnum()]
        if wrong or not environments:
            found = f"not {', '.join(wrong)}" if wrong else "and there is none"
            raise ConfigError(f"environments have names of letters, digits, - and _, {found}")
        self.limits = limits or SessionLimits()
        self.keys = keys or Keys([])
        self.tables = {name: SessionTable(name, make, self.limits) for name, make in environments.items()}
        self._sockets = {name: SocketEndpoint(table) for name, table in self.tables.items()}

    def application(self) -> web.Application:
        """Return the application. When it ends, every session is closed."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.limits.content.message_bytes)
        app.router.add_get("/health", self._health)
        for name, table in self.tables.items():
            mcp = McpEndpoint(table)
            for path in (f"/{name}", "") if len(self.tables) == 1 else (f"/{name}",):
                app.router.add_get(f"{path}/ws", self._sockets[name].serve)
                app.router.add_post(f"{path}/mcp", mcp.post)
                app.router.add_delete(f"{path}/mcp", mcp.delete)
                app.router.add_get(f"{path}/schema", _schema)
        app.on_shutdown.append(self._stop)
        app.cleanup_ctx.append(self._sweeping)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="this server is not for browsers")
        named = self.keys.find(request.headers.get("Authorization")) if self.keys else ""
        if named is None and request.path != "/health":
            raise web.HTTPUnauthorized(text="a key is needed: Authorization: Bearer KEY")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        sessions = {name: len(table) for name, table in self.tables.items()}
        return web.json_response({"status": "healthy", "sessions": sessions, "limit": self.limits.sessions})

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(self.limits.idle_s / 4, 30.0))
                for table in self.tables.values():
                    await table.sweep()

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await asyncio.gather(*(table.close_all() for table in self.tables.values()))

    async def _stop(self, _: web.Application) -> None:
        await asyncio.gather(*(endpoint.stop() for endpoint in self._sockets.values()))


async def _schema(_: web.Request) -> web.Response:
    """The shape of an action; what there is to call, ``list_tools`` tells."""
    action: dict[str, Any] = {
        "type": "object",
        "properties": {
            "type": {"enum": ["call_tool", "list_tools"]},
            "tool_name": {"type": "string"},
            "arguments": {"type": "object"},
        },
        "required": ["type"],
    }
    anything = {"type": "object"}
    return web.json_response({"action": action, "observation": anything, "state": anything})


async def start_server(
    server: EnvironmentServer, stack: AsyncExitStack, host: str = "127.0.0.1", port: int = 0
) -> int:
    """Open the port. Closing ``stack`` closes it, and every session.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened, or other machines could reach it and nobody needs a key.
    """
    if host not in LOOPBACK and not server.keys:
        raise ConfigError(
            f"other machines reach {host}: set {KEYS_VARIABLE} to the keys of those who may ask"
        )
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=5.0)
    return await open_port(runner, stack, host, port)
