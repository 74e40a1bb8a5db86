"""The content of a message in the Hugging Face form: a text, or parts of which each is a text or an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BETWEEN = "\n\n"
"""What stands between a user's question and what continues the same message."""


def content_parts(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A content as parts of its own: ``{"type": "text", "text": ...}``, ``{"type": "image", ...}``."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else [{**part} for part in content]


def content_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The words of a content, with nothing between its parts, as chat templates show them."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")
