"""Run a server of environments until it is told to stop; `selfverify agent serve` and pools start it."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

from selfverify.core.errors import ConfigError, SelfVerifyError
from selfverify.remote.bearer_keys import find_keys
from selfverify.remote.environments.environment_server import KEYS_VARIABLE, EnvironmentServer, start_server
from selfverify.remote.environments.sessions import Factory, SessionLimits

FORCE_S = 20.0
"""Seconds that an orphaned server gets to close its sessions."""

logger = logging.getLogger("selfverify.environments")


def find_environment(spec: str) -> tuple[str, Factory]:
    """Return the name and the factory of an environment.

    Args:
        spec: ``name=package.module:factory``; the factory is a class or a function without arguments.

    Raises:
        ConfigError: It has another form, or there is no such factory.
    """
    name, _, path = spec.partition("=")
    module, _, attribute = path.partition(":")
    if not (name and module and attribute):
        raise ConfigError(f"{spec!r} is no environment; one looks like phone=package.module:factory")
    try:
        factory = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"{spec!r}: there is no {attribute} in {module}: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{spec!r}: {attribute} is nothing that can be called")
    return name, factory


async def serve_until_told(
    server: EnvironmentServer,
    host: str,
    port: int,
    on_ready: Callable[[int], None],
    with_parent: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; then close every session.

    Args:
        server: What is served.
        host: The address that is listened on.
        port: The port; 0 takes a free one.
        on_ready: Called with the port.
        with_parent: End also when the standard input ends, as it does when the process that started this one
            is gone.

    Raises:
        ConfigError: As `start_server`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        on_ready(await start_server(server, stack, host, port))
        if with_parent:
            threading.Thread(target=_watch_parent, args=(loop, stop), daemon=True).start()
        await stop.wait()
        logger.info("stopping; %d sessions are open", sum(len(table) for table in server.tables.values()))


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when the standard input ends; by force, if an environment keeps the loop from hearing of it."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
    time.sleep(FORCE_S)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the environments that the command line names; the first line that is printed has the port."""
    parser = argparse.ArgumentParser(description="Serve environments over OpenEnv's wire and MCP.")
    parser.add_argument("environment", nargs="+", help="name=package.module:factory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--sessions", type=int, default=64, help="the most sessions of each environment")
    parser.add_argument(
        "--idle", type=float, default=600.0, help="seconds without a request until a session ends"
    )
    parser.add_argument("--busy", type=float, default=600.0, help="seconds that one request may take")
    parser.add_argument("--with-parent", action="store_true", help="end when the standard input ends")
    given = parser.parse_args(arguments)
    # Standard output has one line, which says the port; whatever environments print goes to standard error.
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        limits = SessionLimits(given.sessions, idle_s=given.idle, busy_s=given.busy)
        environments = dict(map(find_environment, given.environment))
        server = EnvironmentServer(environments, limits, find_keys(KEYS_VARIABLE, None))

        def say(port: int) -> None:
            print(json.dumps({"port": port}), file=ready, flush=True)

        asyncio.run(serve_until_told(server, given.host, given.port, say, given.with_parent))
    except SelfVerifyError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
