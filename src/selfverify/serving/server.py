"""Running a gateway until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from selfverify.errors import ConfigError
from selfverify.remote.client import OpenAIClient, ServerSettings
from selfverify.serving.app import Gateway, Settings
from selfverify.serving.metrics import Metrics
from selfverify.serving.page import digits_example
from selfverify.serving.upstream import Upstream

logger = logging.getLogger("selfverify.serving")


def local_gateway(
    model: str, settings: Settings, judges: Sequence[str] = (), max_tokens: int = 256, max_batch: int = 64
) -> Gateway:
    """A gateway to a model in this process.

    Args:
        model: As `Policy.load` takes it; clients call it by its last part, ``builtin:digits`` or a folder's
            name.
        settings: Of the gateway.
        judges: Further verifiers, as `make_verifier` takes them; clients call them the same.
        max_tokens: Length of a candidate where the request gives none.
        max_batch: Candidates sampled together.
    """
    from selfverify.policy.policy import Policy
    from selfverify.selection.verifiers import make_verifier
    from selfverify.serving.local import Local

    metrics = Metrics()
    policy = Policy.load(model)
    verifiers = {spec: make_verifier(spec, policy) for spec in judges}
    name = model if model.startswith("builtin:") else Path(model).name
    backend = Local(policy, name, verifiers, max_tokens, max_batch, metrics.batch.observe)
    return Gateway(backend, settings, metrics, digits_example if name == "builtin:digits" else None)


def upstream_gateway(server: ServerSettings, settings: Settings, separate: bool = False) -> Gateway:
    """A gateway to a server; the client has to be entered: `run_gateway` does."""
    metrics = Metrics()
    client = OpenAIClient(server, lambda outcome: metrics.upstream.labels(outcome).inc())
    return Gateway(Upstream(client, separate), settings, metrics)


async def start(gateway: Gateway, host: str, port: int, stack: AsyncExitStack, grace_s: float = 30.0) -> int:
    """Open the port; closing ``stack`` stops listening, lets requests in flight finish for up to ``grace_s``
    seconds, then closes the backend.

    Returns:
        The port, which is another where 0 was asked for.

    Raises:
        ConfigError: The port cannot be opened.
    """
    if isinstance(gateway.backend, Upstream):
        await stack.enter_async_context(gateway.backend.client)
    else:
        stack.callback(gateway.backend.close)  # type: ignore[attr-defined]
    runner = web.AppRunner(
        gateway.application(),
        handler_cancellation=True,
        shutdown_timeout=grace_s,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=75,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be opened: {error.strerror or error}") from None
    assert site._server is not None
    return int(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]


async def run_gateway(
    gateway: Gateway, host: str, port: int, grace_s: float, on_ready: Callable[[int], None]
) -> None:
    """Serve until SIGINT or SIGTERM; see `start` for what happens then."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        on_ready(await start(gateway, host, port, stack, grace_s))
        await stop.wait()
        logger.info("stopping; %d requests in flight", gateway.in_flight)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`asyncio.run`, on uvloop where that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
