"""Make a gateway and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.connectors.server import Keys, open_port, read_keys, stop_asked
from selfverify.core.errors import ConfigError
from selfverify.selection.calibration import Calibration
from selfverify.serving.app import Gateway, Metrics, is_loopback
from selfverify.serving.backend import Backend, check_choosing
from selfverify.serving.config import ListeningConfig, ServeConfig
from selfverify.serving.page import digits_example
from selfverify.serving.schemas import ApiError
from selfverify.serving.upstream import Upstream

logger = logging.getLogger("selfverify.serving")

http_logger = logging.getLogger("selfverify.serving.http")
"""The logger of aiohttp: nothing, since it quotes what it cannot read, with keys and prompts."""
http_logger.setLevel(logging.CRITICAL)


def open_gateway(settings: ServeConfig) -> Gateway:
    """Return the gateway that settings describe, with its model loaded; `run_gateway` starts it.

    Raises:
        ConfigError: A model, verifier or address does not exist, or the key cannot be read.
        DataError: The calibration cannot be read.
    """
    asked = settings.gateway
    keys = read_keys(asked.api_key_file) if asked.api_key_file else []
    if len(keys) > 1:
        raise ConfigError(f"api_key_file {asked.api_key_file}: it holds {len(keys)} keys; give one")
    calibration = Calibration.load(asked.calibration) if asked.calibration else None
    metrics, example = Metrics(), None
    backend: Backend
    if settings.backend.upstream is not None:
        server = ServerConfig(
            settings.backend.upstream,
            timeout_s=asked.timeout,
            longest_wait_s=10.0,  # clients of the gateway are told at once to come back later
        )
        backend = upstream_of(server, metrics)
    else:
        from selfverify.policy.policy import Policy
        from selfverify.serving.local import Local
        from selfverify.verifiers.make_verifier import make_verifier

        own, model = settings.backend, str(settings.backend.model)
        policy = Policy.load(model)
        backend = Local(
            policy,
            model if model.startswith("builtin:") else Path(model).name,
            {spec: make_verifier(spec, policy) for spec in own.judge},
            own.max_tokens,
            own.max_batch,
            asked.most_pixels,
            metrics.batch.observe,
        )
        example = digits_example if model == "builtin:digits" else None
    try:
        check_choosing(backend, asked.best_of, calibration)
    except ApiError as error:
        raise ConfigError(str(error)) from None
    gate = None
    if settings.looking.look:
        from selfverify.serving.visual import VisualGate  # it needs torch

        gate = VisualGate(settings.looking.settings())
    return Gateway(backend, asked, Keys(keys), calibration, metrics, example, gate)


def upstream_of(server: ServerConfig, metrics: Metrics) -> Upstream:
    """Return a server as backend; ``metrics`` counts the tries."""
    return Upstream(OpenAIClient(server, lambda outcome: metrics.upstream.labels(outcome).inc()))


YOUNG_OBJECTS = 5000
"""Objects that are made, and not freed, before the garbage collector looks at them. Requests leave nothing
for it to find, so it need not look after every fifth one, as it does by default."""


async def start(gateway: Gateway, host: str, port: int, stack: AsyncExitStack, grace_s: float = 30.0) -> int:
    """Open the backend and the port. Closing ``stack`` stops listening, gives requests in flight ``grace_s``
    seconds to finish, and then closes the backend.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened.
    """
    gateway.on_loopback = is_loopback(host)
    await stack.enter_async_context(gateway.backend)
    runner = web.AppRunner(
        gateway.application(),
        handler_cancellation=True,
        shutdown_timeout=grace_s,
        access_log=None,
        logger=http_logger,
        auto_decompress=False,
        keepalive_timeout=75,
    )
    return await open_port(runner, stack, host, port)


async def run_gateway(gateway: Gateway, listening: ListeningConfig, on_ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM; `start` says what happens then."""
    stop = stop_asked()
    if not gateway.keys and not is_loopback(listening.host):
        logger.warning("everybody who reaches %s may ask: set a key (api_key_file)", listening.host)
    async with AsyncExitStack() as stack:
        port = await start(gateway, listening.host, listening.port, stack, listening.grace)
        # Entries that are there by now stay: a collection that goes through it stops all requests for 90 to
        # 280 ms.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)  # what a request makes is freed at its end
        on_ready(port)
        await stop.wait()
        logger.info("stopping; %d requests in flight", gateway.in_flight)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine like `asyncio.run`, with uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
