"""An asynchronous client of OpenAI-compatible model servers.

It retries, keeps deadlines, bounds the size of replies, and raises one type of error (`ServerError`). It
sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server knows pass through.

OpenAI's own client was weighed: it takes about five times the CPU per request, and its replies have no bound.
See docs/serving.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from selfverify.core.errors import ServerError
from selfverify.remote.chat_wire import (
    CHAT,
    Event,
    Passed,
    as_chunk,
    as_it_came,
    checked,
    encoded,
    garbage,
    not_error,
    read_body,
    read_events,
)
from selfverify.remote.connection import FAULTS, LOST, Connection, ServerSettings
from selfverify.remote.lacking import Lacking
from selfverify.remote.origin import called
from selfverify.remote.routing import Router
from selfverify.remote.trying_again import tried_again

if TYPE_CHECKING:
    import aiohttp

REFUSALS = (400, 422, 501)
"""Statuses with which a server refuses a field that it does not know."""

TOLD = ("openai-model", "openai-processing-ms", "openai-version")
"""The headers of a server's reply that clients may see. Others tell about the account that pays."""
TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI's protocol can be asked for."""

Found = TypeVar("Found")

OnLost = Callable[[], None]
"""Called for a try whose cost will never be known."""

OnAgain = Callable[[str, str, str, bool], None]
"""Called before a request is sent again: see `OpenAIClient`."""


class OpenAIClient:
    """One server, or several. Use it as an asynchronous context manager.

    Of several servers those are asked that have the model (`Router`). A call goes to the next one at once
    where a server fails for a passing reason or does not know the model, and to the first one again after a
    wait.

    Args:
        servers: The servers. How often and with what waits is asked, the first one's settings say.
        on_try: Called after each try with the server's name, and ``ok`` or the error's code.
        on_again: Called before a request is sent again: with the names of the server that failed and of the
            one that is asked now, the error's code, and whether the first may have done the work.

    Example:
        >>> async with OpenAIClient(ServerSettings("http://127.0.0.1:8000")) as client:  # doctest: +SKIP
        ...     reply = await client.chat({"model": "m", "messages": [{"role": "user", "content": "7+2?"}]})
    """

    def __init__(
        self,
        servers: ServerSettings | Sequence[ServerSettings],
        on_try: Callable[[str, str], None] = lambda server, outcome: None,
        on_again: OnAgain = lambda first, then, code, charged: None,
    ) -> None:
        several = [servers] if isinstance(servers, ServerSettings) else list(servers)
        self.settings = several[0]
        self.connections = [Connection(settings) for settings in several]
        self.router = Router(self.connections)
        self.on_try = on_try
        self.on_again = on_again
        self._open = AsyncExitStack()
        self._without_logprobs = Lacking()
        self._without_alternatives = Lacking()

    async def __aenter__(self) -> Self:
        for connection in self.connections:
            await self._open.enter_async_context(connection)
        self._open.push_async_callback(self.router.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def server_for(self, model: str) -> ServerSettings:
        """Return the server to ask for a model.

        Raises:
            ServerError: None has it.
        """
        return (await self.router.to(model))[0].settings

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
        _, reply = await self._reply(CHAT, body, on_lost, until)
        return checked(reply)

    async def chat_as_it_comes(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a chat completion as the server's own bytes, and read. See `chat`."""
        raw, reply = await self._reply(CHAT, body, on_lost, until)
        if not isinstance(reply.get("choices"), list):
            checked(reply)  # says what it is instead
        return as_it_came(raw, reply), reply

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> Passed:
        """Return what the server answers at any path, such as ``embeddings``. See `chat`.

        Raises:
            ServerError: As `chat`; or the answer is no JSON object, or an error.
        """

        async def attempt(server: Connection, headers: Mapping[str, str]) -> Passed:
            async with await server.open(path, body, headers) as response:
                raw = await read_body(response, self.settings.most_bytes)
            reply = not_error(await server.decoded(raw))
            told = {k.lower(): v for k, v in response.headers.items() if k.lower() in TOLD}
            return Passed(as_it_came(raw, reply), reply, told)

        with called(path, body.get("model")) as headers:
            servers = await self.router.to(str(body.get("model")))
            return await self._retried(servers, lambda server: attempt(server, headers), on_lost, until)

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
        path: str = CHAT,
    ) -> AsyncGenerator[tuple[bytes, dict[str, Any]], None]:
        """Yield the server's own events, and the chunks in them. See `stream`; ``path`` may be another."""
        with called(path, body.get("model")) as headers:
            servers = await self.router.to(str(body.get("model")))
            server, response = await self._retried(
                servers, lambda server: _opened(server, path, body, headers), on_lost, until
            )
            begun, most = False, self.settings.most_bytes
            try:
                with server.errors():
                    if response.content_type == "application/json":  # a server that knows no streams
                        whole = await server.decoded(await read_body(response, most))
                        chunk = as_chunk(checked(whole)) if path == CHAT else not_error(whole)
                        begun = True
                        yield b"data: " + encoded(chunk), chunk
                        return
                    async for event in read_events(response, most):
                        if event.data == b"[DONE]":
                            return
                        chunk = await _chunk(server, event)
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
                self._without_logprobs.odd(model, sure=True)
            elif place:
                self._without_alternatives.odd(model, sure=True)
            return found
        raise AssertionError("the last way raises or returns")

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of all servers, each once; of a server with given models only those.

        Raises:
            ServerError: As `chat`, from the first server, if all of them fail.
        """
        lists = await asyncio.gather(*map(self._models, self.connections), return_exceptions=True)
        found: dict[str, dict[str, Any]] = {}
        for listed in lists:
            if isinstance(listed, BaseException) and not isinstance(listed, ServerError):
                raise listed
            for model in [] if isinstance(listed, ServerError) else listed:
                found.setdefault(model["id"], model)
        if not found and isinstance(lists[0], ServerError):
            raise lists[0]
        return list(found.values())

    async def _models(self, server: Connection) -> list[dict[str, Any]]:
        with called("models") as headers:
            try:
                listed = await self._retried([server], lambda server: server.models(headers))
            except ServerError as error:
                if error.status != 404 or server.settings.models is None:
                    raise
                listed = []  # a server that lists nothing
        given = server.settings.models
        by_name = {model["id"]: model for model in listed}
        named = by_name if given is None else {name: {"id": name, "object": "model"} for name in given}
        return [by_name.get(name, model) for name, model in named.items()]

    async def _reply(
        self,
        path: str,
        body: Mapping[str, Any],
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them, of the first try that succeeds."""
        with called(path, body.get("model")) as headers:
            servers = await self.router.to(str(body.get("model")))
            return await self._retried(
                servers, lambda server: server.reply(path, body, headers), on_lost, until
            )

    async def _retried(
        self,
        servers: Sequence[Connection],
        attempt: Callable[[Connection], Awaitable[Found]],
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> Found:
        """Return what the first try gives that succeeds: of each server in turn, then of each again."""
        now = asyncio.get_running_loop().time
        failed: list[tuple[Connection, ServerError]] = []

        async def each_once() -> Found:
            faults: list[ServerError] = []
            for server in servers:
                if failed:
                    self._sends_again(*failed[-1], server)
                try:
                    return await self._told(server, attempt, on_lost)
                except ServerError as error:
                    failed.append((server, error))
                    faults.append(error)
                    if not (error.retry or error.status == 404):
                        raise
                if until is not None and now() >= until:
                    break
            # Of those that may succeed a moment later, the one that wants to be asked first.
            passing = [fault for fault in faults if fault.retry]
            raise min(passing, key=lambda fault: fault.retry_after or 0.0, default=faults[-1])

        return await tried_again(each_once, self.settings, until)

    def _sends_again(self, first: Connection, error: ServerError, then: Connection) -> None:
        self.on_again(first.name, then.name, _outcome(error), error.code in LOST)

    async def _told(
        self,
        server: Connection,
        attempt: Callable[[Connection], Awaitable[Found]],
        on_lost: OnLost | None,
    ) -> Found:
        """Make one try and report how it ended."""
        try:
            with server.errors():
                result = await attempt(server)
        except asyncio.CancelledError:  # at a deadline, or nobody waits any more
            if on_lost:
                on_lost()
            raise
        except ServerError as error:
            self.on_try(server.name, _outcome(error))
            if error.retry:
                self.router.failed(server, error)
            if on_lost and error.code in LOST:
                on_lost()
            raise
        self.on_try(server.name, "ok")
        self.router.worked(server)
        return result


def _outcome(error: ServerError) -> str:
    """Return how a try ended, in one of a few words."""
    return error.code if error.code in FAULTS else "refused"


async def _opened(
    server: Connection, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> tuple[Connection, aiohttp.ClientResponse]:
    return server, await server.open(path, body, headers)


async def _chunk(server: Connection, event: Event) -> dict[str, Any]:
    chunk = not_error(await server.decoded(event.data))
    if not isinstance(chunk.get("choices") or [], list):
        raise garbage("a chunk's choices are no list")
    return chunk
