"""What goes over the wire to a model server and back, and which replies can be used."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.core.errors import DataError, ServerError
from selfverify.remote.bounded_reading import read_at_most
from selfverify.remote.server_replies import text_of

if TYPE_CHECKING:
    import aiohttp

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
