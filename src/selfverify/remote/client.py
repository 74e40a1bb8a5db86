"""An asynchronous client of OpenAI-compatible model servers.

Retries, deadlines and typed errors (`selfverify.errors.ServerError`) in one place. What is sent is a plain
dictionary of OpenAI's fields, so that nothing a server understands has to be known here.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.errors import ConfigError, DataError, ServerError

try:
    import aiohttp
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
    from tenacity.wait import wait_exponential_jitter
    from yarl import URL
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

API_KEY_VARIABLE = "SELFVERIFY_SERVER_API_KEY"
"""Environment variable with the key that is sent; without it ``OPENAI_API_KEY``."""

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which another try may succeed."""

_LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults behind which a server may have done its work."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server is and how patient to be.

    Args:
        url: Its address; ``/v1`` is put behind it if it has no path.
        api_key: Sent as bearer; None takes the environment's.
        timeout_s: For one try, connecting and reading.
        tries: How often a request is sent that fails for a passing reason.
        wait_s: Before the second try; twice as long before each next one, with jitter.
        longest_wait_s: Between tries, also if the server asks for more.
        connections: Open at once.
        most_bytes: Of one reply.
    """

    url: str
    api_key: str | None = None
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.2
    longest_wait_s: float = 10.0
    connections: int = 1024
    most_bytes: int = 64 * 2**20


class OpenAIClient:
    """One server. Use it as an asynchronous context manager.

    Example:
        >>> async with OpenAIClient(ServerSettings("http://127.0.0.1:8000")) as client:  # doctest: +SKIP
        ...     reply = await client.chat({"model": "m", "messages": [{"role": "user", "content": "7+2?"}]})
    """

    def __init__(self, settings: ServerSettings, on_try: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.base = server_url(settings.url)
        self.on_try = on_try or (lambda outcome: None)
        """Told how each try ended: ``ok``, or the error's code."""
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def chat(
        self, body: Mapping[str, Any], on_lost: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """A chat completion; of its ``choices`` those with a message, at least one.

        Args:
            body: OpenAI's fields.
            on_lost: Called for each try that may have been answered, at a cost nobody will ever know.

        Raises:
            ServerError: After the last try, or at once where another would not help.
        """
        reply = await self._retried(lambda: self._once("POST", "chat/completions", body), on_lost)
        return _checked(reply)

    async def stream(
        self, body: Mapping[str, Any], on_lost: Callable[[], None] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed chat completion; connecting is tried again, reading is not.

        Args:
            body: OpenAI's fields.
            on_lost: As in `chat`; not called for a try of which there was a chunk.

        Raises:
            ServerError: The server refuses, the stream breaks off before ``[DONE]``, or holds garbage.
        """
        response = await self._retried(lambda: self._open(body), on_lost)
        begun = False
        try:
            if response.content_type == "application/json":  # a server that knows no streams
                reply = _checked(_decoded(await _read(response, self.settings.most_bytes)))
                begun = True
                yield _as_chunk(reply)
                return
            async for data in _events(response, self.settings.most_bytes):
                if data == "[DONE]":
                    return
                chunk = _decoded(data.encode())
                if chunk.get("error"):
                    raise _refusal(502, chunk)
                if not isinstance(chunk.get("choices") or [], list):
                    raise _garbage("a chunk's choices are no list")
                begun = True
                yield chunk
            raise ServerError(f"{self.base}: the stream broke off before its end", code="cut_off", retry=True)
        except TimeoutError:
            raise self._timed_out() from None
        except aiohttp.ClientError as error:
            raise ServerError(
                f"{self.base}: the stream broke off: {error}", code="cut_off", retry=True
            ) from None
        finally:
            response.close()  # also tells the server to stop, if there is more to come
            if on_lost and not begun:
                on_lost()

    async def models(self) -> list[dict[str, Any]]:
        """What ``/v1/models`` lists.

        Raises:
            ServerError: As `chat`.
        """
        found = (await self._retried(lambda: self._once("GET", "models", None))).get("data")
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
        """One try, its outcome told and its error made ours."""
        try:
            try:
                result = await attempt()
            except asyncio.CancelledError:  # at a deadline, or nobody waits any more
                if on_lost:
                    on_lost()
                raise
            except aiohttp.ConnectionTimeoutError:
                raise ServerError(
                    f"{self.base} cannot be reached: no connection in time", code="unreachable", retry=True
                ) from None
            except TimeoutError:
                raise self._timed_out() from None
            except aiohttp.ClientConnectorError as error:
                raise ServerError(
                    f"{self.base} cannot be reached: {error}", code="unreachable", retry=True
                ) from None
            except aiohttp.InvalidURL:
                raise ConfigError(f"{self.base} is no address of a server") from None
            except aiohttp.ClientError as error:
                why = str(error) or type(error).__name__
                raise ServerError(
                    f"{self.base}: the connection broke off: {why}", code="cut_off", retry=True
                ) from None
        except ServerError as error:
            self.on_try(error.code or "refused")
            if on_lost and error.code in _LOST:
                on_lost()
            raise
        self.on_try("ok")
        return result

    async def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        assert self._session is not None, "use the client as a context manager"
        data = None if body is None else _encoded(body)
        async with self._session.request(method, self.base / path, data=data) as response:
            raw = await _read(response, self.settings.most_bytes)
            if response.status >= 400:
                raise _refusal(response.status, _lenient(raw), response.headers.get("Retry-After"))
            return _decoded(raw)

    async def _open(self, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        assert self._session is not None, "use the client as a context manager"
        data = _encoded(body)
        response = await self._session.post(self.base / "chat/completions", data=data)
        if response.status < 400:
            return response
        async with response:
            raw = await _read(response, self.settings.most_bytes)
            raise _refusal(response.status, _lenient(raw), response.headers.get("Retry-After"))

    def _timed_out(self) -> ServerError:
        text = f"{self.base} did not answer within {self.settings.timeout_s:g} s"
        return ServerError(text, 504, "timeout", retry=True)


def server_url(url: str) -> URL:
    """The address below which the endpoints are.

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


async def _events(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[str]:
    """The ``data`` of server-sent events."""
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
                yield b"\n".join(lines).decode("utf-8", "replace")
                lines = []


def _encoded(body: Mapping[str, Any]) -> bytes:
    """As JSON; of a body with an image, in a quarter of the time that the standard library takes."""
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
    """A whole completion as the only chunk of a stream."""
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
    """An error status, with what the server says about it."""
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


async def gather_or_cancel(*tasks: asyncio.Task[Any]) -> None:
    """Wait for all; when this is cancelled, so are they, and nothing is left running."""
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
