"""A server of environments: OpenEnv's wire at ``/ws``, the Model Context Protocol at ``/mcp``.

Every session has an environment of its own (`connectors.endpoint`); many sessions share a process. A server
of several environments has each below its name, such as ``/phone/ws``; the only one of a server is also at
``/ws``.

Without keys everybody who reaches the port may ask. So a server without keys listens on this machine only. No
server answers browsers: a page that somebody has open could ask it, too.

`selfverify agent serve` and the pool's `connectors.sources.ProcessSource` run such a server. The gateway
(`serving.server`) uses `open_port`, `stop_asked` and `Keys`, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import pkgutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from selfverify.connectors.content import ContentLimits
from selfverify.connectors.endpoint import CALLS, Endpoint, SessionLimits
from selfverify.connectors.pool import KEYS_VARIABLE, EnvironmentServerConfig, Factory
from selfverify.core.config import how_to_get
from selfverify.core.errors import ConfigError, SelfVerifyError, needs
from selfverify.core.files import read_regular
from selfverify.core.worker import end_with_parent

with needs("servers need more", "serve"):
    from aiohttp import web


logger = logging.getLogger("selfverify.environments")


def address_of(host: str, port: int) -> str:
    """Return where a server of ours listens, as an address; IPv6's colons stand in brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def open_port(runner: web.AppRunner, stack: AsyncExitStack, host: str, port: int) -> int:
    """Let an application listen. Closing ``stack`` closes it.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened.
    """
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be opened: {error.strerror or error}") from None
    address: tuple[str, int] = runner.addresses[0]
    return address[1]


def stop_asked() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, from now on, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop.set)
    return stop


class Keys:
    """Bearer keys of those who may ask, kept and compared as digests.

    Every key is compared, each in constant time, so that timing does not tell which key was close.

    Args:
        keys: The keys.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._known = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._known)

    def admit(self, header: str | None) -> bool:
        """Return whether an ``Authorization`` header has one of the keys, or none is needed."""
        scheme, _, given = (header or "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = [hmac.compare_digest(known, digest) for known in self._known]
        return not found or (scheme.lower() == "bearer" and any(found))


def read_keys(path: Path) -> list[str]:
    """Read keys from a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    try:
        lines = [line.strip() for line in read_regular(path).decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys {path} cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key; leave it out to serve everybody who can reach the port")
    return keys


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
        self.endpoints = {name: Endpoint(name, make, self.limits) for name, make in environments.items()}

    def application(self) -> web.Application:
        """Return the application. When it ends, every session is closed."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.limits.content.message_bytes)
        app.router.add_get("/health", self._health)
        for name, endpoint in self.endpoints.items():
            for path in (f"/{name}", "") if len(self.endpoints) == 1 else (f"/{name}",):
                app.router.add_get(f"{path}/ws", endpoint.serve)
                app.router.add_post(f"{path}/mcp", endpoint.post)
                app.router.add_delete(f"{path}/mcp", endpoint.delete)
        app.on_shutdown.append(self._stop)
        app.cleanup_ctx.append(self._sweeping)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="this server is not for browsers")
        if request.path != "/health" and not self.keys.admit(request.headers.get("Authorization")):
            raise web.HTTPUnauthorized(text="a key is needed: Authorization: Bearer KEY")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        sessions = {name: len(endpoint) for name, endpoint in self.endpoints.items()}
        return web.json_response({"status": "healthy", "sessions": sessions, "limit": self.limits.sessions})

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(self.limits.idle_s / 4, 30.0))
                for endpoint in self.endpoints.values():
                    await endpoint.sweep()

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        await asyncio.wait({sweeping})
        await asyncio.gather(*(endpoint.close() for endpoint in self.endpoints.values()))

    async def _stop(self, _: web.Application) -> None:
        await asyncio.gather(*(endpoint.stop() for endpoint in self.endpoints.values()))


async def start_server(
    server: EnvironmentServer, stack: AsyncExitStack, host: str = "127.0.0.1", port: int = 0
) -> int:
    """Open the port. Closing ``stack`` closes it, and every session.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened, or other machines could reach it without a key.
    """
    if host not in LOOPBACK and not server.keys:
        raise ConfigError(
            f"other machines reach {host}: set {KEYS_VARIABLE} to the keys of those who may ask"
        )
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=5.0)
    return await open_port(runner, stack, host, port)


FORCE_S = 20.0
"""Seconds that an orphaned server gets to close its sessions."""


def find_environment(spec: str, known: Mapping[str, Factory] | None = None) -> tuple[str, Factory]:
    """Return the name and the factory of an environment.

    Args:
        spec: A name that is known, or ``name=package.module:factory``; the factory is a class or a function
            without arguments.
        known: Environments by name.

    Raises:
        ConfigError: It has another form, or there is no such factory.
    """
    known = known or {}
    if spec in known:
        return spec, known[spec]
    name, _, path = spec.partition("=")
    if not name or ":" not in path:
        names = f"; known by name are {', '.join(known)}" if known else ""
        raise ConfigError(
            how_to_get(spec)
            or f"{spec!r} is no environment; one looks like phone=package.module:factory{names}"
        )
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{spec!r} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{spec!r}: this is nothing that can be called")
    return name, factory


async def serve_until_told(
    settings: EnvironmentServerConfig,
    on_ready: Callable[[int], None],
    known: Mapping[str, Factory] | None = None,
    with_parent: bool = False,
    content: ContentLimits = CALLS,
) -> None:
    """Serve until SIGINT or SIGTERM; then close every session.

    Args:
        settings: The environments and the address.
        on_ready: Called with the port.
        known: Environments by name, beside those that the settings import.
        with_parent: End also when the standard input ends, as it does when the process that started this one
            is gone.
        content: Limits of the content that a client may send.

    Raises:
        ConfigError: There is no such environment, the file of keys cannot be read, or as `start_server`.
    """
    environments = dict(find_environment(spec, known) for spec in settings.environments)
    limits = SessionLimits(settings.sessions, settings.idle, settings.busy, content=content)
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    keys += read_keys(settings.keys) if settings.keys else []
    server = EnvironmentServer(environments, limits, Keys(keys))
    stop = stop_asked()
    async with AsyncExitStack() as stack:
        on_ready(await start_server(server, stack, settings.host, settings.port))
        if with_parent:
            loop = asyncio.get_running_loop()
            # By force, if an environment keeps the loop from hearing of it.
            end_with_parent(lambda: loop.call_soon_threadsafe(stop.set), FORCE_S)
        await stop.wait()
        logger.info("stopping; %d sessions are open", sum(map(len, server.endpoints.values())))


def main() -> None:
    """Serve for a `ProcessSource`: settings come as JSON, and the port is printed as JSON."""
    # All that environments print goes to standard error.
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def say(port: int) -> None:
        print(json.dumps({"port": port}), file=ready, flush=True)

    try:
        settings = EnvironmentServerConfig.model_validate_json(sys.argv[1])
        asyncio.run(serve_until_told(settings, say, with_parent=True))
    except SelfVerifyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
