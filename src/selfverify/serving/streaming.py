"""Server-sent events to one client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from aiohttp import web

from selfverify.serving.json_text import json_bytes

REQUEST_ID = web.RequestKey("request_id", str)

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response of events. It begins with the first one, so that an early error can still set the status.

    Args:
        request: What it responds to.
        stall_s: The seconds for which a client may stop reading.
    """

    def __init__(self, request: web.Request, stall_s: float) -> None:
        self._request = request
        self._stall_s = stall_s
        self._response = web.StreamResponse(headers=_HEADERS)
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    @property
    def begun(self) -> bool:
        """Whether an event was written."""
        return self._response.prepared

    def put_comment(self, text: str) -> None:
        """Queue a comment, which clients skip, for `follow` to write."""
        self._queue.put_nowait(f": {text}\n\n".encode())

    def put_event(self, data: dict[str, Any], name: str = "") -> None:
        """Queue an event for `follow` to write."""
        self._queue.put_nowait(_event(data, name))

    async def follow(self, task: asyncio.Task[Any], keep_alive_s: float) -> None:
        """Write what is queued until ``task`` is done, and a sign of life in every idle ``keep_alive_s``.

        Raises:
            ConnectionResetError: The client has left.
        """
        task.add_done_callback(lambda _: self._queue.put_nowait(None))
        while True:
            try:
                async with asyncio.timeout(keep_alive_s):
                    part = await self._queue.get()
            except TimeoutError:
                part = b": working\n\n"
            if part is None:
                return
            await self._write(part)

    async def event(self, data: dict[str, Any]) -> None:
        """Write an event."""
        await self._write(_event(data))

    async def copy(self, event: bytes) -> None:
        """Write an event that is one already."""
        await self._write(event + b"\n\n")

    async def done(self) -> None:
        """Write OpenAI's last event."""
        await self._write(b"data: [DONE]\n\n")

    async def end(self) -> web.StreamResponse:
        """End the stream and return the response."""
        await self._read_by_client(self._response.write_eof())
        return self._response

    async def _write(self, part: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._read_by_client(self._response.write(part))

    async def _read_by_client(self, writing: Awaitable[None]) -> None:
        """Wait for a client to read, but not for one that has stopped reading: it would keep its slot.

        Raises:
            ConnectionResetError: It has, and its connection is closed.
        """
        try:
            async with asyncio.timeout(self._stall_s):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return b"".join([head.encode(), b"data: ", json_bytes(data), b"\n\n"])
