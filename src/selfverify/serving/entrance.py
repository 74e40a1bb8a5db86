"""The gateway's entrance: who may ask, what errors become, what is counted and logged of a request."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from selfverify.remote.bearer_keys import Keys
from selfverify.serving.api_errors import ApiError, api_error, error_response
from selfverify.serving.counters import Metrics
from selfverify.serving.intake import Intake, Room
from selfverify.serving.page import PAGE_PATHS
from selfverify.serving.security import RateLimit
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.streaming import REQUEST_ID

logger = logging.getLogger("selfverify.serving")

ABOUT = web.RequestKey("about", str)
"""What the log says of a request, besides its path and status."""

ROOM = web.RequestKey("room", Room)
"""Where the body of a request is read."""

OPEN_PATHS = PAGE_PATHS | {"/health"}
"""The paths that need no key."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Entrance:
    """Admits requests, makes their errors responses, counts and logs them.

    Args:
        settings: How requests are treated.
        keys: The keys of those who may ask; without any, everybody may.
        metrics: The counters.
    """

    def __init__(self, settings: GatewaySettings, keys: Keys, metrics: Metrics) -> None:
        self.settings = settings
        self.keys = keys
        self.metrics = metrics
        self.rate = RateLimit(settings.rate_limit)
        self.intake = Intake(settings)
        self.in_flight = 0

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its handler, if its caller may ask."""
        begun, status = time.perf_counter(), 499
        request[REQUEST_ID] = f"req-{secrets.token_hex(12)}"
        known = request.match_info.route.resource
        path = known.canonical if known is not None else "other"
        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            with self.intake.room() as request[ROOM]:
                response = await self._response(request, handler)
            status = response.status
            if not response.prepared:
                response.headers["x-request-id"] = request[REQUEST_ID]
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            self.metrics.cancelled.inc()
            raise
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)
            seconds = time.perf_counter() - begun
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            logger.info(
                "%s %s %s %d %.0f ms%s",
                request[REQUEST_ID], request.method, path, status, seconds * 1e3, request.get(ABOUT, ""),
            )  # fmt: skip

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
        if request.path in OPEN_PATHS:
            return
        caller = request.remote or "unknown"
        if self.keys:
            name = self.keys.find(request.headers.get("Authorization"))
            if name is None:
                text = "a valid key is needed: Authorization: Bearer KEY"
                raise ApiError(401, text, "invalid_api_key")
            caller = f"key {name}"
        if not request.path.startswith("/v1/"):
            return
        wait = self.rate.wait_s(caller)
        if wait > 0:
            text = f"more than {settings.rate_limit:g} requests a minute; ask again in {wait:.1f} s"
            raise ApiError(429, text, "rate_limit_exceeded", retry_after=wait)
        if self.in_flight > settings.max_in_flight:
            text = f"{settings.max_in_flight} requests are being worked on already; ask again in a moment"
            raise ApiError(503, text, "overloaded", retry_after=1.0)


def told(request: web.Request, error: Exception) -> ApiError:
    """Return the error that a client is told. The details of a fault of our own go to the log only."""
    known = api_error(error)
    if known is not None:
        return known
    logger.error("request %s failed", request[REQUEST_ID], exc_info=error)
    text = f"the gateway failed; its log says why under {request[REQUEST_ID]}"
    return ApiError(500, text, "internal_error")
