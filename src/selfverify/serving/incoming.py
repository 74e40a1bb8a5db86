"""Requests on their way in: their JSON, the question about the answer's format, their images' addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from selfverify.rollouts.requests import SCORE_INSTRUCTION
from selfverify.serving.errors import ApiError, invalid
from selfverify.serving.images import Picture

_FETCHED = {"url", "path", "image", "video", "audio"}
"""Fields of a part that some servers fetch from, besides those that end with ``_url``."""

READ_S = 60.0
"""Seconds for a request's body."""


Asked = TypeVar("Asked", bound=BaseModel)


async def read_as(request: web.Request, kind: type[Asked]) -> tuple[dict[str, Any], Asked]:
    """A request's JSON object, as it is and as what it should be.

    Raises:
        ApiError: `read_json` cannot read it, or it is no ``kind``; the message names the field.
    """
    raw = await read_json(request)
    try:
        return raw, kind.model_validate(raw)
    except ValidationError as error:
        raise invalid(error) from None


async def read_json(request: web.Request) -> dict[str, Any]:
    """A request's JSON object.

    Raises:
        ApiError: It is none, is not said to be, or comes compressed or too slowly.
    """
    if request.content_type != "application/json":
        # Browsers let every page send other types anywhere, without asking the server first.
        raise ApiError(415, "Content-Type: application/json is needed", "unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "compressed requests are not taken", "unsupported_encoding")
    try:
        async with asyncio.timeout(READ_S):
            found = from_json(await request.read())
    except TimeoutError:
        raise ApiError(408, f"the request did not arrive within {READ_S:g} s", "timeout") from None
    except ValueError as error:
        raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the request has to be a JSON object", "invalid_json")
    return found


def with_instruction(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the request for the answer format behind the last one, if that is a user's and does
    not speak of a score already."""
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "user":
        return messages
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return messages
    texts = [
        i for i, p in enumerate(parts)
        if isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str)
    ]  # fmt: skip
    if any("<score>" in parts[i]["text"] for i in texts):
        return messages
    if texts:
        text = f"{parts[texts[-1]]['text'].strip()} {SCORE_INSTRUCTION}"
        parts = [{**p, "text": text} if i == texts[-1] else p for i, p in enumerate(parts)]
    else:
        parts = [*parts, {"type": "text", "text": SCORE_INSTRUCTION}]
    changed = parts[0]["text"] if isinstance(content, str) else parts
    return [*messages[:-1], {**last, "content": changed}]


def remote_as_data(messages: list[dict[str, Any]], pictures: Sequence[Picture]) -> list[str]:
    """Addresses for an upstream: data URLs as they came, fetched images as data URLs, so that the upstream
    never fetches anything that a client names."""
    given = [
        part["image_url"]["url"] if isinstance(part["image_url"], dict) else part["image_url"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    return [url if url.startswith("data:") else pic.url for url, pic in zip(given, pictures, strict=True)]


def refuse_addresses(messages: list[dict[str, Any]]) -> None:
    """Images are taken from parts of type ``image_url`` and checked; nothing else that an upstream could
    fetch is passed on. Servers know more than OpenAI's parts: ``video_url``, ``audio_url``, images untyped.

    Raises:
        ApiError: A part names an address, or holds an image where none is looked for.
    """
    for m, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for p, part in enumerate(content):
            place = f"messages.{m}.content.{p}"
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise ApiError(400, f"{place}: a part is an object with a type", "invalid_value", place)
            for name, value in part.items():
                if name == "image_url" == part["type"]:
                    continue
                if isinstance(value, dict) and "url" in value:
                    given = value["url"]
                elif name in _FETCHED or name.endswith("_url"):
                    given = value
                else:
                    continue
                inside = isinstance(given, str) and given.startswith("data:")
                if given is not None and (name == "image_url" or not inside):
                    text = f"{place}.{name}: only images, in parts of type image_url, may have an address"
                    raise ApiError(400, text, "remote_content_refused", place)


def without_images(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For the log."""

    def part(found: Any) -> Any:
        if not isinstance(found, dict):
            return {"type": None}
        return {name: found[name] for name in ("type", "text") if name in found}

    return [
        {**m, "content": [part(p) for p in m["content"]]} if isinstance(m.get("content"), list) else m
        for m in messages
    ]
