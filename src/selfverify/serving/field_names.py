"""The names of a request's fields: servers have many of their own, but a misspelt one would do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from selfverify.serving.api_errors import ApiError

KNOWN = frozenset(
    [
        "audio",
        "best_of",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "look",
        "max_tokens",
        "max_completion_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
        "best_of_n",
        "bad_words",
        "ignore_eos",
        "min_p",
        "min_tokens",
        "repetition_penalty",
        "stop_token_ids",
        "top_a",
        "top_k",
    ]
)
"""OpenAI's fields and ours; and fields of servers that look like them."""

_MOST_CHECKED = 16
"""The most unknown names that are compared: a request may have thousands."""


def refuse_misspelt(names: Iterable[str]) -> None:
    """Refuse a field that is almost called like one of `KNOWN`.

    Raises:
        ApiError: Such a field; the message says which one may be meant.
    """
    unknown = [name for name in names if name not in KNOWN and len(name) <= 32][:_MOST_CHECKED]
    for name in unknown:
        for meant in get_close_matches(name.lower(), KNOWN, 1, 0.85):
            text = f"{name}: there is no such field; is {meant} meant? With MODEL@plain any field passes"
            raise ApiError(400, text, "unknown_parameter", name)
