"""Servers of environments for tests: ours, and one that answers with whatever a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from selfverify.connectors.endpoint import SessionLimits
from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment
from selfverify.connectors.pool import Factory
from selfverify.connectors.server import EnvironmentServer, Keys, start_server
from tiny_environment import Counter


async def serve(
    stack: AsyncExitStack, limits: SessionLimits | None = None, keys: list[str] | None = None, **more: Factory
) -> tuple[EnvironmentServer, str]:
    """A server of counters, or of other environments by name, and its address."""
    server = EnvironmentServer(more or {"counter": Counter}, limits, Keys(keys or []))
    return server, f"http://127.0.0.1:{await start_server(server, stack)}"


def with_server(
    use: Callable[[str, EnvironmentServer], Awaitable[Any]], limits: SessionLimits | None = None, **more: Any
) -> Any:
    """What ``use`` returns for a server's address; afterwards no environment is open."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            server, url = await serve(stack, limits, **more)
            return await use(url, server)

    found = asyncio.run(main())
    assert Counter.opened == []
    return found


async def opened(stack: AsyncExitStack, url: str, **settings: Any) -> RemoteEnvironment:
    """A client that is closed with the stack."""
    environment = RemoteEnvironment(RemoteConfig(url, **settings))
    stack.push_async_callback(environment.close)
    return environment


def with_client(use: Callable[[RemoteEnvironment], Awaitable[Any]], **settings: Any) -> Any:
    """What ``use`` returns for a client of a server of counters; ``settings`` are the client's."""

    async def main(url: str, _: EnvironmentServer) -> Any:
        async with AsyncExitStack() as stack:
            return await use(await opened(stack, url, **settings))

    return with_server(main)


async def answering(
    stack: AsyncExitStack,
    script: Callable[[web.WebSocketResponse], Awaitable[None]],
    schema: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
) -> str:
    """The address of a server whose sockets follow a script; it may say which fields its actions have."""

    async def handler(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await script(socket)
        return socket

    routes = [web.get("/ws", handler)] + ([] if schema is None else [web.get("/schema", schema)])
    return await hosted(stack, *routes)


async def hosted(stack: AsyncExitStack, *routes: web.RouteDef) -> str:
    """The address of a server with these routes."""
    app = web.Application()
    app.router.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"
