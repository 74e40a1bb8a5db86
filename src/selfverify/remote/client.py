"""An asynchronous client of OpenAI-compatible model servers.

It retries, keeps deadlines, bounds the size of replies, and raises one type of error (`ServerError`). It
sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server knows pass through.

OpenAI's own client was weighed: it takes about five times the CPU per request, and its replies have no bound.
See docs/serving.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from selfverify.core.errors import ServerError
from selfverify.remote.chat_wire import (
    CHAT,
    Event,
    as_chunk,
    as_it_came,
    checked,
    decoded,
    encoded,
    garbage,
    not_error,
    read_body,
    read_events,
)
from selfverify.remote.connection import FAULTS, LOST, Connection, ServerConfig
from selfverify.remote.trying_again import tried_again

if TYPE_CHECKING:
    pass

REFUSALS = (400, 422, 501)
"""Statuses with which a server refuses a field that it does not know."""

PROBE_S = 2.0
"""Seconds in which a server has to answer that is asked whether it does."""

TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI's protocol can be asked for."""

Found = TypeVar("Found")

OnLost = Callable[[], None]
"""Called for a try whose cost will never be known."""


class OpenAIClient:
    """One server. Use it as an asynchronous context manager.

    Args:
        server: The server, and how often and with what waits it is asked.
        on_try: Called after each try with ``ok`` or the error's code.

    Example:
        >>> async with OpenAIClient(ServerConfig("http://127.0.0.1:8000")) as client:  # doctest: +SKIP
        ...     reply = await client.chat({"model": "m", "messages": [{"role": "user", "content": "7+2?"}]})
    """

    def __init__(self, server: ServerConfig, on_try: Callable[[str], None] = lambda outcome: None) -> None:
        self.settings = server
        self.connection = Connection(server)
        self.on_try = on_try
        self._without_logprobs = set[str]()
        self._without_alternatives = set[str]()

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.__aexit__()

    async def chat(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> dict[str, Any]:
        """Return a chat completion. Of its ``choices`` it keeps those with a message, at least one.

        Args:
            body: OpenAI's fields.
            on_lost: Called for each try that the server may have answered without our knowing at what cost.
            until: No try begins after this time of the event loop's clock; the last fault is raised.

        Raises:
            ServerError: The last try failed, or a try failed in a way that another one would not help.
        """
        _, reply = await self._reply(body, on_lost, until)
        return checked(reply)

    async def chat_as_it_comes(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a chat completion as the server's own bytes, and read. See `chat`."""
        raw, reply = await self._reply(body, on_lost, until)
        if not isinstance(reply.get("choices"), list):
            checked(reply)  # says what it is instead
        return as_it_came(raw, reply), reply

    async def stream(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a streamed chat completion. Connecting is retried, reading is not.

        Args:
            body: OpenAI's fields.
            on_lost: As in `chat`; not called for a try that brought a chunk.
            until: As in `chat`.

        Raises:
            ServerError: The server refuses, the stream breaks off before ``[DONE]``, or holds garbage.
        """
        async with aclosing(self.stream_as_it_comes(body, on_lost, until)) as events:
            async for _, chunk in events:
                yield chunk

    async def stream_as_it_comes(
        self,
        body: Mapping[str, Any],
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> AsyncGenerator[tuple[bytes, dict[str, Any]], None]:
        """Yield the server's own events, and the chunks in them. See `stream`."""
        server = self.connection
        response = await self._retried(lambda: server.open(CHAT, body), on_lost, until)
        begun, most = False, self.settings.most_bytes
        try:
            with server.errors():
                if response.content_type == "application/json":  # a server that knows no streams
                    whole = decoded(await read_body(response, most))
                    chunk = as_chunk(checked(whole))
                    begun = True
                    yield b"data: " + encoded(chunk), chunk
                    return
                async for event in read_events(response, most):
                    if event.data == b"[DONE]":
                        return
                    chunk = _chunk(event)
                    begun = True
                    data = as_it_came(event.data, chunk)
                    yield event.raw if data is event.data else b"data: " + data, chunk
            raise server.failed("the stream broke off before its end", "cut_off")
        finally:
            response.close()  # also tells the server to stop, if there is more to come
            if on_lost and not begun:
                on_lost()

    async def with_logprobs(
        self, model: str, call: Callable[[dict[str, Any]], Awaitable[Found]], alternatives: bool = True
    ) -> Found:
        """Call with the fields that ask for log-probabilities; if the server refuses them, call without.

        With ``alternatives`` also for those of the likeliest tokens in every place, which a server may refuse
        alone. The client remembers the models for which the server refuses them.

        Raises:
            ServerError: ``call`` failed, and not because of these fields.
        """
        ways: list[dict[str, Any]] = [{}]
        if model not in self._without_logprobs:
            ways.insert(0, {"logprobs": True})
            if alternatives and model not in self._without_alternatives:
                ways.insert(0, {"logprobs": True, "top_logprobs": TOP_LOGPROBS})
        for place, fields in enumerate(ways):
            try:
                found = await call(fields)
            except ServerError as error:
                if error.status not in REFUSALS or not fields:
                    raise
                continue
            # It worked without the fields of the ways before: they were what the server refused.
            if place and not fields:
                self._without_logprobs.add(model)
            elif place:
                self._without_alternatives.add(model)
            return found
        raise AssertionError("the last way raises or returns")

    async def models(self) -> list[dict[str, Any]]:
        """Return the server's models.

        Raises:
            ServerError: As `chat`.
        """
        return await self._retried(self.connection.models)

    async def fault(self) -> str | None:
        """Ask the server once; return what is wrong with it, None where it answers, even without a list."""
        try:
            with self.connection.errors():
                async with asyncio.timeout(PROBE_S):
                    await self.connection.models()
        except ServerError as error:
            return None if error.status in (404, 405, 501) else _outcome(error)
        return None

    async def _reply(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them, of the first try that succeeds."""
        return await self._retried(lambda: self.connection.reply(CHAT, body), on_lost, until)

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[Found]],
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> Found:
        """Return what the first try gives that succeeds."""
        return await tried_again(lambda: self._told(attempt, on_lost), self.settings, until)

    async def _told(self, attempt: Callable[[], Awaitable[Found]], on_lost: OnLost | None) -> Found:
        """Make one try and report how it ended."""
        try:
            with self.connection.errors():
                result = await attempt()
        except asyncio.CancelledError:  # at a deadline, or nobody waits any more
            if on_lost:
                on_lost()
            raise
        except ServerError as error:
            self.on_try(_outcome(error))
            if on_lost and error.code in LOST:
                on_lost()
            raise
        self.on_try("ok")
        return result


def _outcome(error: ServerError) -> str:
    """Return how a try ended, in one of a few words."""
    return error.code if error.code in FAULTS else "refused"


def _chunk(event: Event) -> dict[str, Any]:
    chunk = not_error(decoded(event.data))
    if not isinstance(chunk.get("choices") or [], list):
        raise garbage("a chunk's choices are no list")
    return chunk
