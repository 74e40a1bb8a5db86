"""An asynchronous client of OpenAI-compatible model servers.

It retries, keeps deadlines, bounds the size of replies, and raises one type of error (`ServerError`). It
sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server knows pass through.

OpenAI's own client was weighed: it takes about five times the CPU per request, and its replies have no bound.
See docs/serving.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from selfverify.core.errors import ConfigError, ServerError
from selfverify.remote.chat_wire import (
    CHAT,
    Event,
    Passed,
    as_chunk,
    as_it_came,
    checked,
    decoded,
    encoded,
    encoded_pieces,
    garbage,
    lenient,
    not_error,
    read_body,
    read_events,
    refusal,
)
from selfverify.remote.in_turn import LARGE, in_turn
from selfverify.remote.lacking import Lacking
from selfverify.remote.large_json import characters
from selfverify.remote.origin import called

try:
    import aiohttp
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
    from tenacity.wait import wait_exponential_jitter
    from yarl import URL
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

API_KEY_VARIABLE = "SELFVERIFY_SERVER_API_KEY"
"""Environment variable with the key that is sent; without it ``OPENAI_API_KEY``."""

REFUSALS = (400, 422, 501)
"""Statuses with which a server refuses a field that it does not know."""

TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI's protocol can be asked for."""

_LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults after which the server may still have done its work, so that the call has to be counted."""

_OWN_CODES = _LOST | {"unreachable"}
"""The faults that have names of ours. A server may name its own as it likes, and as many as it likes."""

Found = TypeVar("Found")

OnLost = Callable[[], None]
"""Called for a try whose cost will never be known."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server is and how patient to be.

    Args:
        url: The server's address; one without a path gets ``/v1``.
        api_key: The key that is sent; None takes the environment's.
        timeout_s: The longest time of one try, connecting and reading included.
        tries: How often a request is sent that fails for a passing reason.
        wait_s: The wait before the second try; each later wait is twice as long, with jitter.
        longest_wait_s: The longest wait between tries. A server that asks for more is not asked again.
        connections: The most connections that are open at once.
        most_bytes: The largest reply, in bytes.
        most_values: The most values of a reply, in lists and objects: see `json_size`.
    """

    url: str
    api_key: str | None = None
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.2
    longest_wait_s: float = 10.0
    connections: int = 1024
    most_bytes: int = 64 * 2**20
    most_values: int = 2_000_000


class OpenAIClient:
    """One server. Use it as an asynchronous context manager.

    Example:
        >>> async with OpenAIClient(ServerSettings("http://127.0.0.1:8000")) as client:  # doctest: +SKIP
        ...     reply = await client.chat({"model": "m", "messages": [{"role": "user", "content": "7+2?"}]})
    """

    def __init__(
        self, settings: ServerSettings, on_try: Callable[[str], None] = lambda outcome: None
    ) -> None:
        self.settings = settings
        self.base = server_url(settings.url)
        self.on_try = on_try
        """Called after each try with ``ok`` or the error's code."""
        key = settings.api_key or os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None
        self._without_logprobs = Lacking()

    async def __aenter__(self) -> Self:
        settings = self.settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.connections),
            timeout=aiohttp.ClientTimeout(
                total=settings.timeout_s, sock_connect=min(10.0, settings.timeout_s)
            ),
            headers=self._headers,
            read_bufsize=2**18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

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

        async def attempt(headers: Mapping[str, str]) -> Passed:
            async with await self._open(path, body, headers) as response:
                raw = await read_body(response, self.settings.most_bytes)
            reply = await self._decoded(raw)
            not_error(reply)
            told = {k.lower(): v for k, v in response.headers.items() if k.lower().startswith("openai-")}
            return Passed(as_it_came(raw, reply), reply, told)

        with called(path, body.get("model")) as headers:
            found: Passed = await self._retried(lambda: attempt(headers), on_lost, until)
        return found

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
            response = await self._retried(lambda: self._open(path, body, headers), on_lost, until)
            begun, most = False, self.settings.most_bytes
            try:
                with self._errors():
                    if response.content_type == "application/json":  # a server that knows no streams
                        whole = await self._decoded(await read_body(response, most))
                        chunk = as_chunk(checked(whole)) if path == CHAT else not_error(whole)
                        begun = True
                        yield b"data: " + encoded(chunk), chunk
                        return
                    async for event in read_events(response, most):
                        if event.data == b"[DONE]":
                            return
                        chunk = await self._chunk(event)
                        begun = True
                        data = as_it_came(event.data, chunk)
                        yield event.raw if data is event.data else b"data: " + data, chunk
                raise self._failed("the stream broke off before its end", "cut_off")
            finally:
                response.close()  # also tells the server to stop, if there is more to come
                if on_lost and not begun:
                    on_lost()

    async def _chunk(self, event: Event) -> dict[str, Any]:
        chunk = not_error(await self._decoded(event.data))
        if not isinstance(chunk.get("choices") or [], list):
            raise garbage("a chunk's choices are no list")
        return chunk

    async def with_logprobs(self, model: str, call: Callable[[dict[str, Any]], Awaitable[Found]]) -> Found:
        """Call with the fields that ask for log-probabilities; if the server refuses them, call without.

        The client remembers the models for which the server refuses them.

        Raises:
            ServerError: ``call`` failed, and not because of these fields.
        """
        if model in self._without_logprobs:
            return await call({})
        try:
            return await call({"logprobs": True, "top_logprobs": TOP_LOGPROBS})
        except ServerError as error:
            if error.status not in REFUSALS:
                raise
        found = await call({})
        # Without them it worked: they were what the server refused.
        self._without_logprobs.odd(model, sure=True)
        return found

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that ``/v1/models`` lists.

        Raises:
            ServerError: As `chat`.
        """
        _, reply = await self._reply("models")
        found = reply.get("data")
        if not isinstance(found, list):
            raise garbage("its list of models has no `data`")
        return [model for model in found if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def _reply(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        on_lost: OnLost | None = None,
        until: float | None = None,
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them, of the first try that succeeds."""
        with called(path, (body or {}).get("model")) as headers:
            found: tuple[bytes, dict[str, Any]] = await self._retried(
                lambda: self._once(path, body, headers), on_lost, until
            )
        return found

    async def _retried(
        self, attempt: Callable[[], Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> Any:
        settings, now = self.settings, asyncio.get_running_loop().time
        waits = wait_exponential_jitter(
            multiplier=settings.wait_s, max=settings.longest_wait_s, jitter=settings.wait_s
        )

        def asked(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return (error.retry_after or 0.0) if isinstance(error, ServerError) else 0.0

        def wait(state: RetryCallState) -> float:
            return max(asked(state), waits(state))

        def stop(state: RetryCallState) -> bool:
            """Whoever asks is told at once to come back later, where this is too late for another try."""
            late = until is not None and now() + state.upcoming_sleep >= until
            return state.attempt_number >= settings.tries or asked(state) > settings.longest_wait_s or late

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ServerError) and error.retry),
            stop=stop,
            wait=wait,
            reraise=True,
        )
        return await retrying(self._told, attempt, on_lost)

    async def _told(self, attempt: Callable[[], Any], on_lost: OnLost | None) -> Any:
        """Make one try and report how it ended."""
        try:
            with self._errors():
                result = await attempt()
        except asyncio.CancelledError:  # at a deadline, or nobody waits any more
            if on_lost:
                on_lost()
            raise
        except ServerError as error:
            self.on_try(error.code if error.code in _OWN_CODES else "refused")
            if on_lost and error.code in _LOST:
                on_lost()
            raise
        self.on_try("ok")
        return result

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn aiohttp's errors into `ServerError`."""
        try:
            yield
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise self._failed("the model server cannot be reached", "unreachable", error) from None
        except TimeoutError:
            text = f"the model server did not answer within {self.settings.timeout_s:g} s"
            raise self._failed(text, "timeout", status=504) from None
        except aiohttp.InvalidURL:
            raise ConfigError(f"{self.base} is no address of a server") from None
        except aiohttp.ClientError as error:
            raise self._failed("the connection to the model server broke off", "cut_off", error) from None

    def _failed(self, text: str, code: str, error: Exception | None = None, status: int = 502) -> ServerError:
        """Return the error for a fault of the connection. Its detail is for those who chose the server."""
        detail = f"{self.base}" if error is None else f"{self.base}: {str(error) or type(error).__name__}"
        return ServerError(text, status, code, retry=True, detail=detail)

    async def _decoded(self, raw: bytes) -> dict[str, Any]:
        most = self.settings.most_values
        return await in_turn(decoded, raw, most) if len(raw) > LARGE else decoded(raw, most)

    async def _once(
        self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them."""
        async with await self._open(path, body, headers) as response:
            raw = await read_body(response, self.settings.most_bytes)
        return raw, await self._decoded(raw)

    async def _open(
        self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Post a body, or get what is there; return the response, of which nothing is read yet."""
        assert self._session is not None, "use the client as a context manager"
        url = self.base / path
        if body is None:
            response = await self._session.get(url, headers=headers)
        elif characters(body) <= LARGE:
            response = await self._session.post(url, data=encoded(body), headers=headers)
        else:
            pieces = await in_turn(encoded_pieces, body)
            length = {"Content-Length": str(sum(map(len, pieces)))}
            response = await self._session.post(url, data=_each(pieces), headers={**headers, **length})
        if response.status < 400:
            return response
        async with response:
            raw = await read_body(response, self.settings.most_bytes)
            raise refusal(response.status, lenient(raw), response.headers.get("Retry-After"))


async def _each(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield pieces; so each is sent before the next one is copied into the socket's buffer."""
    for piece in pieces:
        yield piece


def server_url(url: str) -> URL:
    """Return the address below which the endpoints are.

    Raises:
        ConfigError: It is no http or https address.
    """
    try:
        found = URL(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a server: {error}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8000/v1")
    path = found.path.rstrip("/")
    return found.with_path(path or "/v1")
