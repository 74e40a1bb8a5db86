"""Run a server of environments until it is told to stop: for `selfverify agent serve`, and for pools."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import operator
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from selfverify.core.distributions import how_to_get
from selfverify.core.errors import ConfigError, SelfVerifyError
from selfverify.core.process_pool import end_with_parent
from selfverify.remote.bearer_keys import find_keys
from selfverify.remote.environments.content import ContentLimits
from selfverify.remote.environments.environment_server import EnvironmentServer, start_server
from selfverify.remote.environments.serving_settings import KEYS_VARIABLE, EnvironmentServing
from selfverify.remote.environments.sessions import Factory, SessionLimits
from selfverify.remote.listening import stop_asked

FORCE_S = 20.0
"""Seconds that an orphaned server gets to close its sessions."""

logger = logging.getLogger("selfverify.environments")


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
    module, _, attribute = path.partition(":")
    if not (name and module and attribute):
        names = f"; known by name are {', '.join(known)}" if known else ""
        raise ConfigError(
            how_to_get(spec)
            or f"{spec!r} is no environment; one looks like phone=package.module:factory{names}"
        )
    try:
        factory = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"{spec!r}: there is no {attribute} in {module}: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{spec!r}: {attribute} is nothing that can be called")
    return name, factory


async def serve_until_told(
    settings: EnvironmentServing,
    on_ready: Callable[[int], None],
    known: Mapping[str, Factory] | None = None,
    with_parent: bool = False,
    content: ContentLimits | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; then close every session.

    Args:
        settings: What is served, and where.
        on_ready: Called with the port.
        known: Environments by name, beside those that the settings import.
        with_parent: End also when the standard input ends, as it does when the process that started this one
            is gone.
        content: What a client may send, where that is more than calls of agents need.

    Raises:
        ConfigError: There is no such environment, or as `start_server`.
    """
    environments = dict(find_environment(spec, known) for spec in settings.environments)
    limits = SessionLimits(settings.sessions, idle_s=settings.idle, busy_s=settings.busy)
    limits = limits if content is None else replace(limits, content=content)
    server = EnvironmentServer(environments, limits, find_keys(KEYS_VARIABLE, settings.keys))
    stop = stop_asked()
    async with AsyncExitStack() as stack:
        on_ready(await start_server(server, stack, settings.host, settings.port))
        if with_parent:
            loop = asyncio.get_running_loop()
            # By force, if an environment keeps the loop from hearing of it.
            end_with_parent(lambda: loop.call_soon_threadsafe(stop.set), FORCE_S)
        await stop.wait()
        logger.info("stopping; %d sessions are open", sum(len(table) for table in server.tables.values()))


def main() -> None:
    """Serve for a pool (`process_source`): settings come as JSON, and the port is printed as JSON."""
    # Whatever environments print goes to standard error.
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def say(port: int) -> None:
        print(json.dumps({"port": port}), file=ready, flush=True)

    try:
        settings = EnvironmentServing.model_validate_json(sys.argv[1])
        asyncio.run(serve_until_told(settings, say, with_parent=True))
    except SelfVerifyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
