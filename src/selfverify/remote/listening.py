"""What our servers share: opening a port, and hearing that they are to stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, suppress

from aiohttp import web

from selfverify.core.errors import ConfigError


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
