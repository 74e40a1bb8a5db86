"""An asynchronous client of OpenAI-compatible model servers, and what its requests cost.

`OpenAIClient` retries, keeps deadlines, bounds the size of replies, and raises one type of error
(`ServerError`). It sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server
knows pass through.

OpenAI's own client was weighed: it takes about five times the CPU per request, and its replies have no bound.
See docs/serving.md.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, NamedTuple, Self, TypeVar

from PIL import Image
from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.clients.replies import text_of
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.images import to_rgb
from selfverify.core.problem import Problem
from selfverify.core.server_address import checked_address

try:
    import aiohttp
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
    from tenacity.wait import wait_exponential_jitter
    from yarl import URL
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None


async def read_at_most(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """Return all that comes; None as soon as it is more than ``most`` bytes."""
    found = bytearray()
    async for part in content.iter_any():
        if len(found) + len(part) > most:
            return None
        found += part
    return bytes(found)


CHAT = "chat/completions"
"""The path of chat completions below a server's address."""

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which another try may succeed."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return a reply's body.

    Raises:
        ServerError: It has more than ``most`` bytes.
    """
    found = await read_at_most(response.content, most)
    if found is None:
        raise garbage(f"more than {most:,} bytes")
    return found


class Event(NamedTuple):
    """A server-sent event: its data, and all its lines as they came."""

    data: bytes
    raw: bytes


async def read_events(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[Event]:
    """Yield the events that have data.

    Raises:
        ServerError: All events together have more than ``most`` bytes.
    """
    begun, lines, size = list[bytes](), list[bytes](), 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise garbage(f"more than {most:,} bytes")
        first, *others = part.split(b"\n")
        begun.append(first)
        for more in others:
            line = b"".join(begun).rstrip(b"\r")
            begun = [more]
            if line:
                lines.append(line)
                continue
            data = [told[5:].strip() for told in lines if told.startswith(b"data:")]
            if data:
                yield Event(b"\n".join(data), b"\n".join(lines))
            lines = []


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return the body as JSON. For a body with an image this takes a quarter of `json.dumps`'s time.

    Raises:
        DataError: The body holds what JSON cannot.
    """
    try:
        return to_json(body)
    except PydanticSerializationError as error:
        raise DataError(f"the request cannot be written as JSON: {error}") from None


def decoded(raw: bytes) -> dict[str, Any]:
    """Return a reply's JSON object.

    Raises:
        ServerError: It is none.
    """
    try:
        found = from_json(raw)
    except ValueError:
        raise garbage(f"it is no JSON: {raw[:80]!r}") from None
    if not isinstance(found, dict):
        raise garbage("it is no JSON object")
    return found


def as_it_came(raw: bytes, reply: Mapping[str, Any]) -> bytes:
    """Return a reply's own bytes; where it holds NaN or Infinity, which are no JSON, nulls stand for them."""
    return to_json(reply, inf_nan_mode="null") if b"NaN" in raw or b"Infinity" in raw else raw


def lenient(raw: bytes) -> Any:
    """Return what a refusal's body says: JSON, or else the beginning of a text."""
    try:
        return from_json(raw)
    except ValueError:
        return raw[:200].decode("utf-8", "replace")


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a completion with the choices that can be used, and the number of those ``dropped``.

    Raises:
        ServerError: There is none; or the reply is an error.
    """
    if "error" in reply and reply["error"] and "choices" not in reply:
        raise refusal(502, reply)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise garbage("it has no choices")
    usable = [choice for choice in choices if _is_usable(choice)]
    if not usable:
        raise garbage("none of its choices has a message")
    for choice in usable:
        message = choice["message"]
        if isinstance(message.get("content"), list):
            message["content"] = text_of(message["content"])
    return reply | {"choices": usable, "dropped": len(choices) - len(usable)}


def not_error(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply.

    Raises:
        ServerError: It is an error that came with a status of success.
    """
    if reply.get("error"):
        raise refusal(502, reply)
    return reply


def as_chunk(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a whole completion as the only chunk of a stream."""
    choices = []
    for choice in reply["choices"]:
        rest = {name: value for name, value in choice.items() if name != "message"}
        delta, calls = choice["message"], choice["message"].get("tool_calls")
        if calls:
            numbered = [{**call, "index": i} for i, call in enumerate(calls) if isinstance(call, dict)]
            delta = delta | {"tool_calls": numbered}
        choices.append(rest | {"delta": delta})
    kept = {name: value for name, value in reply.items() if name != "dropped"}
    return kept | {"object": "chat.completion.chunk", "choices": choices}


def _is_usable(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict) or choice.get("finish_reason") == "error":
        return False
    # No content is a tool call, a refusal, or thoughts that were cut off: asking again would not help.
    text, calls = message.get("content"), message.get("tool_calls")
    return (text is None or isinstance(text, str | list)) and (calls is None or isinstance(calls, list))


def garbage(why: str) -> ServerError:
    """Return the error for a reply that cannot be used."""
    return ServerError(f"the server's reply cannot be used: {why}", 502, "bad_reply", retry=True)


def refusal(status: int, body: Any, retry_after: str | None = None) -> ServerError:
    """Return the error for a status, with what the server says about it."""
    error = body.get("error", body) if isinstance(body, dict) else body
    code, said = None, error
    if isinstance(error, dict):
        said = error.get("message") or error.get("detail") or error
        code = error.get("code") if isinstance(error.get("code"), str) else None
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    if status == 404 and code is None and "model" in text.lower():
        code = "model_not_found"
    if code is None and status in (401, 403):
        code = "invalid_api_key"
    passing = status in _PASSING
    wait = seconds_of(retry_after)
    return ServerError(f"the server refused ({status}): {text[:500]}", status, code, passing, wait)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for: a number, also with a fraction, or a date."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


API_KEY_VARIABLE = "SELFVERIFY_SERVER_API_KEY"
"""Environment variable with the key that is sent; without it ``OPENAI_API_KEY``."""

LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults after which the server may still have done its work, so that the call has to be counted."""

FAULTS = LOST | {"unreachable"}
"""The faults that have names of ours. A server may name its own as it likes, and as many as it likes."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
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
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.2
    longest_wait_s: float = 10.0
    connections: int = 1024
    most_bytes: int = 64 * 2**20


class Connection:
    """The connection to one server, whose faults become `ServerError`.

    Use it as an asynchronous context manager.
    """

    def __init__(self, settings: ServerConfig) -> None:
        self.settings = settings
        self.base = server_url(settings.url)
        key = settings.api_key or os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

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

    async def open(self, path: str, body: Mapping[str, Any] | None) -> aiohttp.ClientResponse:
        """Post a body, or get what is there; return the response, of which nothing is read yet.

        Raises:
            ServerError: The server refuses.
        """
        assert self._session is not None, "use it as a context manager"
        url = self.base / path
        if body is None:
            response = await self._session.get(url)
        else:
            response = await self._session.post(url, data=io.BytesIO(encoded(body)))
        if response.status < 400:
            return response
        async with response:
            raw = await read_body(response, self.settings.most_bytes)
            raise refusal(response.status, lenient(raw), response.headers.get("Retry-After"))

    async def reply(self, path: str, body: Mapping[str, Any] | None) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them.

        Raises:
            ServerError: The server refuses, or its reply cannot be used.
        """
        async with await self.open(path, body) as response:
            raw = await read_body(response, self.settings.most_bytes)
        return raw, decoded(raw)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that ``/v1/models`` lists.

        Raises:
            ServerError: As `reply`.
        """
        _, reply = await self.reply("models", None)
        found = reply.get("data")
        if not isinstance(found, list):
            raise garbage("its list of models has no `data`")
        return [model for model in found if isinstance(model, dict) and isinstance(model.get("id"), str)]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn aiohttp's errors into `ServerError`."""
        try:
            yield
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise self.failed("the model server cannot be reached", "unreachable", error) from None
        except TimeoutError:
            text = f"the model server did not answer within {self.settings.timeout_s:g} s"
            raise self.failed(text, "timeout", status=504) from None
        except aiohttp.InvalidURL:
            raise ConfigError(f"{self.base} is no address of a server") from None
        except aiohttp.ClientError as error:
            raise self.failed("the connection to the model server broke off", "cut_off", error) from None

    def failed(self, text: str, code: str, error: Exception | None = None, status: int = 502) -> ServerError:
        """Return the error for a fault of the connection. Its detail is for those who chose the server."""
        detail = f"{self.base}" if error is None else f"{self.base}: {str(error) or type(error).__name__}"
        return ServerError(text, status, code, retry=True, detail=detail)


def server_url(url: str) -> URL:
    """Return the address below which the endpoints are.

    Raises:
        ConfigError: It is no http or https address, or holds a password.
    """
    found = URL(checked_address(url, "http://127.0.0.1:8000/v1", f"in ${API_KEY_VARIABLE}"))
    return found if found.path not in ("", "/") else found.with_path("/v1")


Found = TypeVar("Found")


async def tried_again(
    attempt: Callable[[], Awaitable[Found]], settings: ServerConfig, until: float | None = None
) -> Found:
    """Return what the first attempt gives that succeeds; the waits between attempts grow.

    Args:
        attempt: The call.
        settings: How often it is made, and with what waits.
        until: No attempt begins after this time of the event loop's clock.

    Raises:
        ServerError: The last attempt failed, or one failed in a way that another one would not help.
    """
    try:
        return await attempt()
    except ServerError as error:
        if not error.retry:
            raise
        before = [error]

    # Only now: tenacity's objects refer to each other in circles. With 32 of them for each call, the garbage
    # collector stopped a gateway for 20 ms every other second.
    async def next_attempt() -> Found:
        if before:
            raise before.pop()
        return await attempt()

    now = asyncio.get_running_loop().time
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
    return await retrying(next_attempt)


REFUSALS = (400, 422, 501)
"""Statuses with which a server refuses a field that it does not know."""

PROBE_S = 2.0
"""Seconds in which a server has to answer that is asked whether it does."""

TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI's protocol can be asked for."""


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


@dataclass(frozen=True, slots=True)
class ModelOnServer:
    """One model of one server, which one text names: ``URL#MODEL``."""

    server: ServerConfig
    model: str

    @classmethod
    def of(cls, address: str, what: str, timeout_s: float = 120.0, tries: int = 3) -> Self:
        """Make one from an address of the form ``URL#MODEL``.

        Args:
            address: The address.
            what: What it is given as, which errors name.
            timeout_s: See `ServerConfig`.
            tries: See `ServerConfig`.

        Raises:
            ConfigError: The address has another form.
        """
        url, _, model = address.partition("#")
        if not model:
            raise ConfigError(f"{what}: a model behind a server is given as URL#MODEL, not {address!r}")
        server_url(url)
        return cls(ServerConfig(url, timeout_s=timeout_s, tries=tries), model)

    @property
    def address(self) -> str:
        """``URL#MODEL``, with the path that is asked."""
        return f"{server_url(self.server.url)}#{self.model}"


class BoundedClient(OpenAIClient):
    """A client that sends few requests at the same time; the others wait here, and their time has not begun.

    Args:
        server: The server.
        at_once: The most requests that wait for it.
    """

    def __init__(self, server: ServerConfig, at_once: int) -> None:
        super().__init__(server)
        self._room = asyncio.Semaphore(at_once)

    async def chat(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> dict[str, Any]:
        """See `OpenAIClient.chat`."""
        async with self._room:
            return await super().chat(body, on_lost, until)


def image_url(image: Image.Image) -> str:
    """Return a picture as a data URL (PNG, so without loss)."""
    buffer = io.BytesIO()
    to_rgb(image).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def openai_messages(problem: Problem) -> list[dict[str, Any]]:
    """Return a problem's messages with its images in their places.

    Raises:
        DataError: There are more or fewer places than images.
    """
    left: list[Image.Image] = list(problem.images)

    def parts(content: Sequence[Any]) -> list[dict[str, Any]]:
        found = []
        for part in content:
            if part.get("type") == "image":
                if not left:
                    raise DataError(f"problem {problem.id}: more places for images than images")
                found.append({"type": "image_url", "image_url": {"url": image_url(left.pop(0))}})
            else:
                found.append(dict(part))
        return found

    messages = [
        {**message, "content": content if isinstance(content, str) else parts(content)}
        for message in problem.messages
        for content in [message.get("content") or ""]
    ]
    if left:
        raise DataError(f"problem {problem.id}: {len(left)} images have no place in its messages")
    return messages
