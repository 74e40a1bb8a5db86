"""Take requests in: their bodies are bounded in bytes, values and time, each alone and all together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from selfverify.remote.in_turn import LARGE, in_turn
from selfverify.remote.json_size import has_more_values
from selfverify.remote.large_json import put_back, read_large
from selfverify.serving.api_errors import ApiError, invalid
from selfverify.serving.serve_settings import GatewaySettings

MOST_FIELDS = 256
"""The most fields of a request, which are walked through again and again."""

FEW = 2**14
"""The bytes of a request up to which going through it takes no millisecond."""

FEW_VALUES = 2000
"""The values of a request up to which parsing it takes a fraction of a millisecond."""

READ_S = 60.0
"""Seconds within which a request's body has to arrive."""

Asked = TypeVar("Asked", bound=BaseModel)


class Intake:
    """Reads the bodies of requests. All that are worked on have one bound in bytes together."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.most_bytes = int(settings.max_body_mb * 2**20)
        self.most_together = max(int(settings.max_bodies_mb * 2**20), self.most_bytes)
        self.most_text = int(settings.max_text_mb * 2**20)
        self.most_values = settings.max_values
        self.read_s = min(READ_S, settings.timeout)
        self.held = 0
        """Bytes of the bodies of all requests that are worked on."""
        self._reading: set[asyncio.Timeout] = set()
        self._stopping = False

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Give a request its room, which is free again at the end."""
        room = Room(self)
        try:
            yield room
        finally:
            self.held -= room.held

    def stop(self) -> None:
        """Wait for no body any longer: the gateway is being stopped."""
        self._stopping = True
        for timeout in self._reading:
            timeout.reschedule(asyncio.get_running_loop().time())


class Room:
    """One request's share of an `Intake`."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.held = 0

    async def read_as(self, request: web.Request, kind: type[Asked]) -> tuple[dict[str, Any], Asked]:
        """Return a request's JSON object, as it came and as a ``kind``.

        Raises:
            ApiError: The request cannot be read, or is no ``kind``; the message names the field.
        """
        raw = await self.read_json(request)
        try:
            return raw, kind.model_validate(raw)
        except ValidationError as error:
            raise invalid(error) from None

    async def read_json(self, request: web.Request) -> dict[str, Any]:
        """Return a request's JSON object.

        Raises:
            ApiError: The request is no JSON object, is not declared as JSON, is compressed, has too many
                bytes, values or fields, too much text, or comes too slowly; or all requests together have
                too many bytes.
        """
        if request.content_type != "application/json":
            # Browsers let every page send other types anywhere, without asking the server first.
            raise ApiError(415, "Content-Type: application/json is needed", "unsupported_media_type")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise ApiError(415, "compressed requests are not taken", "unsupported_encoding")
        data = await self._body(request)
        # Of many requests that come at once, those that take a millisecond or more take it one by one.
        aside = len(data) > LARGE or has_more_values(data, FEW_VALUES)
        return await in_turn(self._parsed, data) if aside else self._parsed(data)

    def _parsed(self, data: bytearray) -> dict[str, Any]:
        """Return what a body says."""
        intake = self.intake
        read = read_large(data, intake.most_text)
        if read is None:
            text = f"the request has more than {intake.most_text:,} bytes besides images in data URLs"
            raise ApiError(413, text, "request_too_large")
        left, urls = read
        if has_more_values(left, intake.most_values):
            text = f"the request has more than {intake.most_values:,} values in lists and objects"
            raise ApiError(413, text, "request_too_large")
        try:
            found = from_json(left, allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from None
        if not isinstance(found, dict):
            raise ApiError(400, "the request has to be a JSON object", "invalid_json")
        if len(found) > MOST_FIELDS:
            text = f"the request has {len(found):,} fields, and {MOST_FIELDS} are allowed"
            raise ApiError(413, text, "request_too_large")
        return {name: put_back(value, urls) for name, value in found.items()} if urls else found

    async def _body(self, request: web.Request) -> bytearray:
        intake, data = self.intake, bytearray()
        self._fit(request.content_length or 0)
        try:
            async with asyncio.timeout(0 if intake._stopping else intake.read_s) as timeout:
                intake._reading.add(timeout)
                try:
                    async for part in request.content.iter_any():
                        self._fit(self.held + len(part))
                        data += part
                        self.held += len(part)
                        intake.held += len(part)
                finally:
                    intake._reading.discard(timeout)
        except TimeoutError:
            if intake._stopping:
                raise ApiError(503, "the gateway is being stopped", "stopping") from None
            text = f"the request did not arrive within {intake.read_s:g} s"
            raise ApiError(408, text, "timeout") from None
        return data

    def _fit(self, size: int) -> None:
        """Raise `ApiError` if this request's body may not have so many bytes now."""
        if size > self.intake.most_bytes:
            raise ApiError(413, "the request is too large", "request_too_large")
        if self.intake.held - self.held + size > self.intake.most_together:
            text = "the requests being worked on take all the memory there is for them; ask again in a moment"
            raise ApiError(503, text, "overloaded", retry_after=1.0)
