"""Prepare the messages of requests: the request for the answer format, the addresses of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from selfverify.core.requests import SCORE_INSTRUCTION
from selfverify.serving.api_errors import ApiError, invalid_value
from selfverify.serving.request_images import Picture, parts_of

_FETCHED = {"url", "path", "image", "video", "audio"}
"""Fields of a part whose address some servers fetch, besides those that end with ``_url``."""


def with_instruction(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, the last of them with the request for the answer format at its end.

    A last message that is not a user's, or that mentions ``<score>``, stays as it is.
    """
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "user":
        return messages
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return messages
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    texts = [part for part in texts if part.get("type") == "text"]
    if any("<score>" in part["text"] for part in texts):
        return messages
    if texts:
        text = f"{texts[-1]['text'].strip()} {SCORE_INSTRUCTION}"
        parts = [{**part, "text": text} if part is texts[-1] else part for part in parts]
    else:
        parts = [*parts, {"type": "text", "text": SCORE_INSTRUCTION}]
    changed = parts[0]["text"] if isinstance(content, str) else parts
    return [*messages[:-1], {**last, "content": changed}]


def with_pictures(messages: list[dict[str, Any]], pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Return the messages with all images as data URLs.

    Data URLs stay as they came. Addresses are replaced by the fetched images, so that an upstream never
    fetches anything that a client names.
    """
    left = iter(pictures)

    def part(found: Any) -> Any:
        if not isinstance(found, dict) or found.get("type") != "image_url":
            return found
        inner, picture = found["image_url"], next(left)
        given = inner if isinstance(inner, dict) else {"url": inner}
        url = given["url"] if given["url"].startswith("data:") else picture.url
        return {**found, "image_url": given | {"url": url}}

    return _changed(messages, part)


def refuse_addresses(messages: list[dict[str, Any]]) -> None:
    """Refuse messages with anything that an upstream could fetch, other than the images that were checked.

    Those are in parts of type ``image_url``. Servers know more parts than OpenAI does: ``video_url``,
    ``audio_url``, images without a type.

    Raises:
        ApiError: A part names an address, or holds an image where none is looked for.
    """
    for place, part in parts_of(messages):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid_value(place, "a part is an object with a type")
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
    """Return the messages without their images, for the log."""

    def part(found: Any) -> Any:
        if not isinstance(found, dict):
            return {"type": None}
        return {name: found[name] for name in ("type", "text") if name in found}

    return _changed(messages, part)


def _changed(messages: list[dict[str, Any]], change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return the messages with every part changed; contents that are texts stay as they are."""
    return [
        {**message, "content": [change(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
