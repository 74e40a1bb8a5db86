"""The gateway's entrance: who may ask, what errors become, what is counted and logged of a request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path

from aiohttp import web

from selfverify.connectors.server import Keys
from selfverify.serving.api_errors import ApiError, api_error, error_response
from selfverify.serving.counters import Metrics
from selfverify.serving.page import PAGE_PATHS
from selfverify.serving.serve_settings import GatewayConfig
from selfverify.serving.streaming import REQUEST_ID

logger = logging.getLogger("selfverify.serving")

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""The ids that are taken from clients."""

OPEN_PATHS = PAGE_PATHS | {"/health"}
"""The paths that need no key."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Entrance:
    """Admits requests, makes their errors responses, counts and logs them.

    Args:
        settings: How requests are treated.
        keys: The key of those who may ask; without one, everybody may.
        metrics: The counters.
    """

    def __init__(self, settings: GatewayConfig, keys: Keys, metrics: Metrics) -> None:
        self.settings = settings
        self.keys = keys
        self.metrics = metrics
        self.in_flight = 0
        self.on_loopback = False
        """Whether only programs on this machine reach the port, among them browsers with foreign pages."""

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its handler, if its caller may ask."""
        request[REQUEST_ID] = request_id(request.headers.get("x-request-id"))
        begun, status = time.perf_counter(), 499  # that of a client that leaves
        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            response = await self._response(request, handler)
            status = response.status
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            self.metrics.cancelled.inc()
            raise
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)
            seconds, path = time.perf_counter() - begun, _route(request)
            self.metrics.observe(path, status, seconds)
            own_id, method = request[REQUEST_ID], request.method
            logger.info("%s %s %s %d %.0f ms", own_id, method, path, status, seconds * 1e3)

    async def sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put what every response says into its headers."""
        if REQUEST_ID in request:  # aiohttp answers by itself what it cannot read
            response.headers["x-request-id"] = request[REQUEST_ID]

    async def _response(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the handler's response, or the one that tells of its error."""
        try:
            self._admit(request)
            return await handler(request)
        except ConnectionResetError:  # the client left while it was written to
            raise
        except Exception as error:
            return error_response(told(request, error))

    def _admit(self, request: web.Request) -> None:
        """Raise `ApiError` if the caller may not ask now."""
        settings = self.settings
        if self.on_loopback and not self.keys:
            self._check_host(request.headers.get("Host"))
        if request.path in OPEN_PATHS:
            return
        if self.keys and self.keys.find(request.headers.get("Authorization")) is None:
            text = "a valid key is needed: Authorization: Bearer KEY"
            raise ApiError(401, text, "invalid_api_key")
        if not request.path.startswith("/v1/"):
            return
        if self.in_flight > settings.max_in_flight:
            text = f"{settings.max_in_flight} requests are being worked on already; ask again in a moment"
            raise ApiError(503, text, "overloaded", retry_after=1.0)

    def _check_host(self, host: str | None) -> None:
        """Raise `ApiError` if a page asks that had a name of its own point here."""
        name = "localhost" if host is None else name_of(host)
        if not is_loopback(name) and name not in map(str.lower, self.settings.allowed_host):
            text = f"the name {name!r} is not served here; selfverify serve --allowed-host {name} serves it"
            raise ApiError(403, text, "host_refused")


def _route(request: web.Request) -> str:
    """Return the route's own path, which is none that a client wrote."""
    known = request.match_info.route.resource
    return known.canonical if known is not None else "other"


def name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    name, _, port = host.rpartition(":")
    name = name if name and port.isdigit() and ("]" in name or ":" not in name) else host
    return name.strip("[]").rstrip(".").lower()


@lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Whether a name or an address is one of this machine's own."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def told(request: web.Request, error: Exception) -> ApiError:
    """Return the error that a client is told. The details of a fault of our own go to the log only."""
    known = api_error(error)
    if known is not None:
        return known
    # Its own text may quote the request.
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    places = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    logger.error("request %s failed: %s %s", request[REQUEST_ID], type(error).__name__, places)
    text = f"the gateway failed; its log says why under {request[REQUEST_ID]}"
    return ApiError(500, text, "internal_error")


def request_id(given: str | None) -> str:
    """Return the client's id of a request if it is well formed, else a new one."""
    return given if given and _ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
