"""An asynchronous client of OpenAI-compatible model servers.

It retries, keeps deadlines, bounds the size of replies, and raises one type of error (`ServerError`). It
sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server knows pass through.

OpenAI's own client was weighed: it takes about five times the CPU per request, and its replies have no bound.
See docs/serving.md.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.remote.json_size import has_more_values

try:
    import aiohttp
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
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

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which another try may succeed."""

_LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults after which the server may still have done its work, so that the call has to be counted."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server is and how patient to be.

    Args:
        url: The server's address; one without a path gets ``/v1``.
        api_key: The key that is sent; None takes the environment's.
        timeout_s: The longest time of one try, connecting and reading included.
        tries: How often a request is sent that fails for a passing reason.
        wait_s: The wait before the second try; each later wait is twice as long, with jitter.
        longest_wait_s: The longest wait between tries, even if the server asks for a longer one.
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
        self._without_logprobs: set[str] = set()

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
        self, body: Mapping[str, Any], on_lost: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Return a chat completion. Of its ``choices`` it keeps those with a message, at least one.

        Args:
            body: OpenAI's fields.
            on_lost: Called for each try that the server may have answered without our knowing at what cost.

        Raises:
            ServerError: The last try failed, or a try failed in a way that another one would not help.
        """
        reply = await self._retried(lambda: self._once("chat/completions", body), on_lost)
        return _checked(reply)

    async def stream(
        self, body: Mapping[str, Any], on_lost: Callable[[], None] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a streamed chat completion. Connecting is retried, reading is not.

        Args:
            body: OpenAI's fields.
            on_lost: As in `chat`; not called for a try that brought a chunk.

        Raises:
            ServerError: The server refuses, the stream breaks off before ``[DONE]``, or holds garbage.
        """
        response = await self._retried(lambda: self._open("chat/completions", body), on_lost)
        begun = False
        try:
            with self._errors():
                if response.content_type == "application/json":  # a server that knows no streams
                    reply = _checked(await self._decoded(await _read(response, self.settings.most_bytes)))
                    begun = True
                    yield _as_chunk(reply)
                    return
                async for data in _events(response, self.settings.most_bytes):
                    if data == b"[DONE]":
                        return
                    chunk = await self._decoded(data)
                    if chunk.get("error"):
                        raise _refusal(502, chunk)
                    if not isinstance(chunk.get("choices") or [], list):
                        raise _garbage("a chunk's choices are no list")
                    begun = True
                    yield chunk
            text = f"{self.base}: the stream broke off before its end"
            raise ServerError(text, 502, "cut_off", retry=True)
        finally:
            response.close()  # also tells the server to stop, if there is more to come
            if on_lost and not begun:
                on_lost()

    async def with_logprobs(self, model: str, call: Callable[[dict[str, Any]], Awaitable[Found]]) -> Found:
        """Call with the fields that ask for log-probabilities; if the server refuses them, call without.

        The client remembers the models for which the server refuses them.

        Raises:
            ServerError: ``call`` failed, and not because of these fields.
        """
        if model not in self._without_logprobs:
            try:
                return await call({"logprobs": True, "top_logprobs": TOP_LOGPROBS})
            except ServerError as error:
                if error.status not in REFUSALS:
                    raise
        found = await call({})
        self._without_logprobs.add(model)  # without them it worked: they were what the server refused
        return found

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that ``/v1/models`` lists.

        Raises:
            ServerError: As `chat`.
        """
        found = (await self._retried(lambda: self._once("models"))).get("data")
        if not isinstance(found, list):
            raise _garbage("its list of models has no `data`")
        return [model for model in found if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def _retried(self, attempt: Callable[[], Any], on_lost: Callable[[], None] | None = None) -> Any:
        settings = self.settings
        waits = wait_exponential_jitter(
            multiplier=settings.wait_s, max=settings.longest_wait_s, jitter=settings.wait_s
        )

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, ServerError) else None
            return max(min(asked or 0.0, settings.longest_wait_s), waits(state))

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ServerError) and error.retry),
            stop=stop_after_attempt(settings.tries),
            wait=wait,
            reraise=True,
        )
        return await retrying(self._told, attempt, on_lost)

    async def _told(self, attempt: Callable[[], Any], on_lost: Callable[[], None] | None) -> Any:
        """Make one try and report how it ended."""
        try:
            with self._errors():
                result = await attempt()
        except asyncio.CancelledError:  # at a deadline, or nobody waits any more
            if on_lost:
                on_lost()
            raise
        except ServerError as error:
            self.on_try(error.code or "refused")
            if on_lost and error.code in _LOST:
                on_lost()
            raise
        self.on_try("ok")
        return result

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn aiohttp's errors into `ServerError`."""
        text, code, status = "", "", 502
        try:
            yield
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            text, code = f"cannot be reached: {error}", "unreachable"
        except TimeoutError:
            text, code, status = f"did not answer within {self.settings.timeout_s:g} s", "timeout", 504
        except aiohttp.InvalidURL:
            raise ConfigError(f"{self.base} is no address of a server") from None
        except aiohttp.ClientError as error:
            text, code = f"the connection broke off: {str(error) or type(error).__name__}", "cut_off"
        if code:
            raise ServerError(f"{self.base}: {text}", status, code, retry=True)

    async def _decoded(self, raw: bytes) -> dict[str, Any]:
        if await has_more_values(raw, self.settings.most_values):
            raise _garbage(f"more than {self.settings.most_values:,} values")
        return _decoded(raw)

    async def _once(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with await self._open(path, body) as response:
            return await self._decoded(await _read(response, self.settings.most_bytes))

    async def _open(self, path: str, body: Mapping[str, Any] | None = None) -> aiohttp.ClientResponse:
        """Post a body, or get what is there; return the response, of which nothing is read yet."""
        assert self._session is not None, "use the client as a context manager"
        url = self.base / path
        response = await (
            self._session.get(url) if body is None else self._session.post(url, data=_encoded(body))
        )
        if response.status < 400:
            return response
        async with response:
            raw = await _read(response, self.settings.most_bytes)
            raise _refusal(response.status, _lenient(raw), response.headers.get("Retry-After"))


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


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise _garbage(f"more than {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


async def _events(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[bytes]:
    """Yield the ``data`` of server-sent events."""
    buffer, lines = b"", []
    async for part in response.content.iter_any():
        buffer += part
        if len(buffer) > most:
            raise _garbage(f"an event of more than {most:,} bytes")
        *whole, buffer = buffer.split(b"\n")
        for line in (raw.rstrip(b"\r") for raw in whole):
            if line.startswith(b"data:"):
                lines.append(line[5:].strip())
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Return the body as JSON. For a body with an image this takes a quarter of `json.dumps`'s time."""
    try:
        return to_json(body)
    except PydanticSerializationError as error:
        raise DataError(f"the request cannot be written as JSON: {error}") from None


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        found = from_json(raw)
    except ValueError:
        raise _garbage(f"it is no JSON: {raw[:80]!r}") from None
    if not isinstance(found, dict):
        raise _garbage("it is no JSON object")
    return found


def _lenient(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError:
        return raw[:200].decode("utf-8", "replace")


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply and reply["error"] and "choices" not in reply:
        raise _refusal(502, reply)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _garbage("it has no choices")
    usable = [choice for choice in choices if _is_usable(choice)]
    if not usable:
        raise _garbage("none of its choices has a message")
    return reply | {"choices": usable, "dropped": len(choices) - len(usable)}


def _as_chunk(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a whole completion as the only chunk of a stream."""
    choices = []
    for choice in reply["choices"]:
        rest = {name: value for name, value in choice.items() if name != "message"}
        delta, calls = choice["message"], choice["message"].get("tool_calls")
        if calls:
            numbered = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)]
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
    return (text is None or isinstance(text, str)) and (calls is None or isinstance(calls, list))


def _garbage(why: str) -> ServerError:
    return ServerError(f"the server's reply cannot be used: {why}", 502, "bad_reply", retry=True)


def _refusal(status: int, body: Any, retry_after: str | None = None) -> ServerError:
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
    seconds = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
    passing = status in _PASSING
    return ServerError(f"the server refused ({status}): {text[:500]}", status, code, passing, seconds)
