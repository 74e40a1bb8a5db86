"""An asynchronous client of OpenAI-compatible model servers.

`OpenAIClient` is OpenAI's own client and what our users need beside it: retries that keep a deadline and tell
of tries that may have cost something, a bound on the size of replies, one type of error (`ServerError`). It
sends and returns plain dictionaries of OpenAI's fields, so that fields that only a server knows pass through.

OpenAI's client is asked below its typed methods, which would make an object of everything that comes, and
sends through aiohttp, which takes less CPU than its own connections.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from selfverify.clients.replies import calls_of, decoded, encoded, usable_choices
from selfverify.core.config import checked_address
from selfverify.core.errors import ConfigError, ServerError, needs

with needs("servers need more", "serve"):
    import aiohttp
    import httpx2
    import openai

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of each request

API_KEY_VARIABLE = "SELFVERIFY_SERVER_API_KEY"
"""Environment variable with the key that is sent; without it ``OPENAI_API_KEY``."""

LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults after which the server may still have done its work, so that the call has to be counted."""

FAULTS = LOST | {"unreachable"}
"""The faults that have names of ours. A server may name its own as it likes, and as many as it likes."""

REFUSALS = (400, 422, 501)
"""Statuses with which a server refuses a field that it does not know."""

TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI's protocol can be asked for."""

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which another try may succeed."""

_CHAT = "/chat/completions"

MOST_BYTES = 64 * 2**20
"""The largest reply, in bytes as they are sent."""

_PROBE_S = 2.0
"""Seconds in which a server has to answer that is asked whether it does."""

Found = TypeVar("Found")

OnLost = Callable[[], None]
"""Called for a try whose cost will never be known."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where a server is and how patient to be.

    Args:
        url: The server's address; one without a path gets ``/v1``.
        api_key: The key that is sent; None takes the environment's.
        timeout_s: The longest time of one try, connecting and reading included; of a stream, the longest
            silence.
        tries: How often a request is sent that fails for a passing reason.
        wait_s: The wait before the second try; each later wait is twice as long, with jitter.
        longest_wait_s: The longest wait between tries. A server that asks for more is not asked again.
        connections: The most requests that wait for the server at once. The others wait here, and their
            time has not begun.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.2
    longest_wait_s: float = 60.0
    connections: int = 1000


def server_url(url: str) -> str:
    """Return the address below which the endpoints are.

    Raises:
        ConfigError: It is no http or https address, or holds a password.
    """
    found = checked_address(url, "http://127.0.0.1:8000/v1", f"in ${API_KEY_VARIABLE}")
    return found if urlsplit(found).path else f"{found}/v1"


def read_reply(raw: bytes, piece: bool = False) -> dict[str, Any]:
    """Return a reply's JSON object; ``piece`` is that of `decoded`.

    Raises:
        ServerError: It is none.
    """
    try:
        found = decoded(raw, piece)
    except ValueError:
        raise garbage(f"it is no JSON: {raw[:80]!r}") from None
    if not isinstance(found, dict):
        raise garbage(f"it is no JSON object: {raw[:80]!r}")
    return found


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a completion.

    Raises:
        ServerError: None of its choices has a message, such as where it is an error.
    """
    if not usable_choices(reply):
        choices = reply.get("choices")
        for told in (reply, *(choices if isinstance(choices, list) else ())):
            refuse_error(told)
        raise garbage(f"none of its choices has a message: {str(reply)[:200]}")
    return reply


def refuse_error(told: Any) -> None:
    """Raise what a server says in a reply of status 200 that it could not do.

    Raises:
        ServerError: It says so.
    """
    if isinstance(told, dict) and (told.get("error") or told.get("object") == "error"):
        raise refusal(502, told)


def as_chunk(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a whole completion as the only chunk of a stream."""
    choices = usable_choices(reply)
    for choice in choices:
        choice["delta"] = message = choice.pop("message")
        if calls := calls_of(message):
            message["tool_calls"] = [{**call, "index": i} for i, call in enumerate(calls)]
    return reply | {"object": "chat.completion.chunk", "choices": choices}


def garbage(why: str) -> ServerError:
    """Return the error for a reply that cannot be used."""
    return ServerError(f"the server's reply cannot be used: {why}", 502, "bad_reply", retry=True)


def refusal(status: int, body: Any, wait_s: float | None = None) -> ServerError:
    """Return the error for a status, with what the server says about it."""
    error = body.get("error") or body if isinstance(body, dict) else body
    error = error if isinstance(error, dict) else {"message": error}
    said, code = error.get("message", error.get("detail", error)), error.get("code")
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    if not isinstance(code, str):
        code = "invalid_api_key" if status in (401, 403) else None
        code = "model_not_found" if status == 404 and "model" in text.lower() else code
    text, passing = f"the server refused ({status}): {text[:500]}".rstrip(": "), status in _PASSING
    return ServerError(text, status, code, passing, wait_s)


_DURATION = re.compile(r"(\d+\.?\d*)\s*(ms|milli|s|m|h)[a-z]*\.?\s*", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(wait: str | None, unit_s: float = 1.0) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for; None where it asks for nothing that can be read.

    It is a number, also with a fraction, a date, or as some servers write it, a duration such as ``1m30s``.

    Args:
        wait: The header's value. A proxy may have added another one behind a comma.
        unit_s: The seconds of a number's unit; ``retry-after-ms`` has milliseconds.
    """
    first = (wait or "").partition(",")[0].strip() or "nan"
    try:
        seconds = float(first) * unit_s
    except ValueError:
        seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _DURATION.findall(first))
        if _DURATION.sub("", first).strip():  # there is more to it
            try:
                date = parsedate_to_datetime(str(wait))
            except (ValueError, OverflowError):
                return None
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time()
    return max(0.0, seconds) if math.isfinite(seconds) else None


class BoundedReply(httpx2.AsyncByteStream):
    """A server's reply, up to ``most`` bytes; a longer one raises."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self.inner, self.most, self.size = inner, most, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self.inner:
            self.size += len(part)
            if self.size > self.most:
                raise garbage(f"it has more than {self.most:,} bytes")
            yield part

    async def aclose(self) -> None:
        await self.inner.aclose()


_trusted = cache(httpx2.create_ssl_context)
"""Whom https addresses are believed. Read once: it takes longer than a hundred requests."""


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
        self.settings, self.on_try = server, on_try
        self.base = server_url(server.url)
        self._room = asyncio.Semaphore(server.connections)
        self._refused: dict[str, int] = {}
        """By model, how many of the ways to ask for log-probabilities its server refuses."""

    async def __aenter__(self) -> Self:
        key = self.settings.api_key or os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY")
        longest = self.settings.timeout_s
        headers: dict[str, str | openai.Omit] = {"Accept-Encoding": "identity"}
        self._asked: openai.RequestOptions = {
            "headers": headers if key else headers | {"Authorization": openai.Omit()}
        }
        self._openai = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=self.base,
            timeout=openai.Timeout(longest, connect=min(10.0, longest), pool=None),
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(
                verify=_trusted(),
                trust_env=False,  # a proxy that programs on this machine are to use is not for its servers
                event_hooks={"response": [self._bound]},
            ),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._openai.close()

    async def _bound(self, response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise garbage("it is compressed, which hides its size and was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = BoundedReply(response.stream, MOST_BYTES)

    async def chat(
        self, body: Mapping[str, Any], on_lost: OnLost = lambda: None, until: float = math.inf
    ) -> dict[str, Any]:
        """Return a chat completion; at least one of its ``choices`` has a message (`usable_choices`).

        Args:
            body: OpenAI's fields.
            on_lost: Called for each try that the server may have answered without our knowing at what cost.
            until: No try begins after this time of the event loop's clock; the last fault is raised.

        Raises:
            ServerError: The last try failed, or a try failed in a way that another one would not help.
        """

        async def attempt() -> dict[str, Any]:
            async with asyncio.timeout(self.settings.timeout_s):
                return checked(read_reply((await self._post(body)).content))

        async with self._room:
            return await self._retried(attempt, on_lost, until)

    async def stream(
        self, body: Mapping[str, Any], on_lost: OnLost = lambda: None, until: float = math.inf
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a streamed chat completion. Connecting is retried, reading is not.

        Args:
            body: OpenAI's fields.
            on_lost: As in `chat`; not called for a try that brought a chunk.
            until: As in `chat`.

        Raises:
            ServerError: The server refuses, the stream breaks off before ``[DONE]``, or holds garbage.
        """
        response = await self._retried(lambda: self._post(body, stream=True), on_lost, until)
        begun = False
        try:
            with self._faults():
                async with aclosing(_chunks(response)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
        finally:
            await response.aclose()  # also tells the server to stop, if there is more to come
            if not begun:
                on_lost()

    async def _post(self, body: Mapping[str, Any], stream: bool = False) -> httpx2.Response:
        """Return the response to a chat request; of that to a stream nothing is read yet."""
        sent: dict[str, Any] = {"content": encoded(body), "stream": stream, "options": self._asked}
        found: httpx2.Response = await self._openai.post(_CHAT, cast_to=httpx2.Response, **sent)
        return found

    async def with_logprobs(
        self, model: str, call: Callable[[dict[str, Any]], Awaitable[Found]], alternatives: bool = True
    ) -> Found:
        """Call with the fields that ask for log-probabilities; if the server refuses them, call without.

        With ``alternatives`` also for those of the likeliest tokens in every place, which a server may refuse
        alone. The client remembers the models for which the server refuses them.

        Raises:
            ServerError: ``call`` failed, and not because of these fields.
        """
        first = max(self._refused.get(model, 0), 0 if alternatives else 1)
        with_top: dict[str, Any] = {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        for way, fields in [*enumerate((with_top, {"logprobs": True}, {}))][first:]:
            try:
                found = await call(fields)
            except ServerError as error:
                if error.status not in REFUSALS or not fields:
                    raise
                continue
            if way > first:  # what was left out is what the server refused
                self._refused[model] = way
            return found
        raise AssertionError("the last call returns or raises")

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that ``/v1/models`` lists.

        Raises:
            ServerError: As `chat`.
        """
        return await self._retried(self._models)

    async def _models(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(self.settings.timeout_s):
            response = await self._openai.get("/models", cast_to=httpx2.Response, options=self._asked)
        found = read_reply(response.content).get("data")
        if not isinstance(found, list):
            raise garbage("its list of models has no `data`")
        return [model for model in found if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def fault(self) -> str | None:
        """Ask the server once; return what is wrong with it, None where it answers, even without a list."""
        try:
            with self._faults():
                async with asyncio.timeout(_PROBE_S):
                    await self._models()
        except ServerError as error:
            return None if error.status in (404, 405, 501) else _outcome(error)
        return None

    async def _retried(
        self, attempt: Callable[[], Awaitable[Found]], on_lost: OnLost = lambda: None, until: float = math.inf
    ) -> Found:
        """Return what the first try gives that succeeds; the waits between tries grow.

        OpenAI's client could do this, but for deadlines, replies that cannot be used, and servers that ask
        for waits longer than its own.
        """
        settings, wait = self.settings, self.settings.wait_s
        for left in reversed(range(settings.tries)):
            try:
                with self._faults():
                    found = await attempt()
                self.on_try("ok")
                return found
            except asyncio.CancelledError:  # at a deadline, or the caller has gone
                on_lost()
                raise
            except ServerError as error:
                self.on_try(_outcome(error))
                if error.code in LOST:
                    on_lost()
                time_left = until - asyncio.get_running_loop().time()
                patience, asked = max(min(time_left, settings.longest_wait_s), 0.0), error.retry_after or 0.0
                if error.retry and asked > patience:
                    text = f"{error.message}; it wants to be asked again in {asked:g} s"
                    text += f", and at most {patience:.3g} s are waited"
                    raise ServerError(text, error.status, error.code, True, asked, self.base) from None
                pause = max(asked, wait + random.uniform(0.0, settings.wait_s))
                if not error.retry or not left or pause >= time_left:
                    raise
            await asyncio.sleep(pause)
            wait = min(2 * wait, settings.longest_wait_s)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn the errors of OpenAI's client, and of those below it, into `ServerError`."""
        try:
            yield
        except _RAISED as error:
            raise self._fault(error) from None

    def _fault(self, error: BaseException) -> ServerError:
        """Return the error for a fault. Its detail is for those who chose the server."""
        if isinstance(error, openai.APIStatusError):
            headers = error.response.headers
            wait_s = seconds_of(headers.get("Retry-After-Ms"), 0.001)
            wait_s = seconds_of(headers.get("Retry-After")) if wait_s is None else wait_s
            error = refusal(error.status_code, error.body, wait_s)
        # OpenAI's client and httpx name aiohttp's errors anew, and take a server that hangs up for a timeout.
        while error.__cause__ is not None and not isinstance(
            error, (ServerError, aiohttp.ClientError, TimeoutError)
        ):
            error = error.__cause__
        if isinstance(error, ServerError):
            detail = self.base + _HINTS.get(error.code or str(error.status), "")
            return replace(error, detail=detail)
        text, code, status = "the connection to the model server broke off", "cut_off", 502
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            text, code = "the model server cannot be reached; is it running?", "unreachable"
        elif isinstance(error, TimeoutError):
            text = f"the model server did not answer within {self.settings.timeout_s:g} s"
            code, status = "timeout", 504
        detail = f"{self.base}: {str(error) or type(error).__name__}"
        return ServerError(text, status, code, retry=True, detail=detail)


_RAISED = (ServerError, TimeoutError, openai.APIError, httpx2.RequestError, aiohttp.ClientError)
"""The errors of calls: ours, those of OpenAI's client, and those of what is below it."""

_HINTS = {
    "bad_reply": "; is it a server of OpenAI's protocol?",
    "invalid_api_key": f"; its key is read from ${API_KEY_VARIABLE}",
    "404": "; is its path right?",
}
"""Advice by the error's code, or by its status where it has none."""


def _outcome(error: ServerError) -> str:
    """Return how a try ended, in one of a few words."""
    return error.code if error.code in FAULTS else "refused"


async def _chunks(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a stream; what a server says that knows no streams is one."""
    if "json" in response.headers.get("Content-Type", ""):
        yield as_chunk(checked(read_reply(await response.aread())))
        return
    async for data in read_events(response.aiter_bytes()):
        if data == b"[DONE]":
            return
        chunk = read_reply(data, piece=True)
        refuse_error(chunk)
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise garbage("a chunk's choices are no list of objects")
        yield chunk
    raise aiohttp.ClientPayloadError("the stream has no end")


async def read_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events.

    OpenAI's client could read them, in three times the CPU; it does not tell a stream that broke off from
    one that has ended.
    """
    rest, data = bytearray(), list[bytes]()
    async for part in parts:
        rest += part
        if b"\n" not in part:
            continue
        *lines, rest = rest.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                data.append(bytes(line[5:].strip()))
            elif not line:
                if any(data):  # some servers send empty ones so that the connection stays
                    yield b"\n".join(data)
                data.clear()


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
            what: Its name in errors.
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
