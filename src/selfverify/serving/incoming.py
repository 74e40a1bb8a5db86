"""Prepare the messages of requests: the request for the answer format, the places of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.core.tags import SCORE_INSTRUCTION
from selfverify.serving.api_errors import invalid_value
from selfverify.serving.best_of import BestOf


def wants_instruction(settings: BestOf, body: Mapping[str, Any]) -> bool:
    """Whether the request for the answer format belongs to a question.

    A model that is to call tools, or to write another format, would have to do both; unless somebody says so.
    """
    if "instruction" in settings.model_fields_set:
        return settings.instruction
    return settings.instruction and not (is_formatted(body) or body.get("tools") or body.get("functions"))


def is_formatted(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a format of its own."""
    return body.get("response_format") not in (None, {"type": "text"})


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


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as parts of text, and a place for each image.

    Raises:
        ApiError: A message or a part is of another kind.
    """
    found = []
    for m, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise invalid_value(f"messages.{m}.role", f"{role!r} is not understood by this model")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise invalid_value(f"messages.{m}.content", "a text or a list of parts is needed")
        parts = [_plain(part, f"messages.{m}.content.{p}") for p, part in enumerate(content)]
        found.append({"role": role, "content": parts})
    return found


def _plain(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image"}
    raise invalid_value(place, f"a part of type {kind!r} is not understood by this model")


def without_images(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without their images, for the log."""

    def part(found: Any) -> Any:
        if not isinstance(found, dict):
            return {"type": None}
        return {name: found[name] for name in ("type", "text") if name in found}

    return [
        {**message, "content": [part(found) for found in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
