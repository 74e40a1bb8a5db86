"""Estimates how many tokens a model reads of a request: before it is asked, and where nobody counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfverify.remote.large_json import text_bytes

_READ = (
    "messages", "prompt", "input", "suffix", "tools", "functions", "documents", "response_format",
    "prediction", "chat_template", "chat_template_kwargs", "prompt_embeds", "query", "instruction",
)  # fmt: skip
"""The fields of requests that models read."""

_TEXTS = {"text", "content", "refusal", "arguments", "input", "prompt", "suffix", "reasoning_content"}
"""Where a text is a text, also if it looks like a data URL."""


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens that a model reads of a request, without images, sound and files.

    Texts count as a quarter of their bytes in UTF-8, names of fields included, each at least one. Numbers in
    ``prompt`` and ``input`` are tokens themselves.

    Args:
        body: OpenAI's fields.
    """
    return sum(_tokens(body[name], name, name in ("prompt", "input")) for name in _READ if name in body)


def _tokens(value: Any, name: str, ids: bool) -> int:
    if isinstance(value, str):
        is_data = name == "data" or (name not in _TEXTS and value[:5].lower() == "data:")
        return 0 if is_data else -(-text_bytes(value) // 4)
    if isinstance(value, Mapping):
        return sum(-(-text_bytes(key) // 4) + _tokens(inner, key, ids) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(_tokens(inner, name, ids) for inner in value)
    return int(ids and isinstance(value, int | float))
