"""Calls of tools in a problem's messages, as chat templates write them."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.core.errors import DataError
from selfverify.core.problem import Problem

CALLS = [
    {"type": "function", "function": {"name": "zoom", "arguments": given}}
    for given in ({"by": "<|im_end|>"}, '{"by": "\\u003c|im_end|>"}')
]
BY = '{"by": "<|im_end|>"}'


def template_of(arguments: str, cut: str) -> str:
    """A template that writes calls, of each message those in ``cut``."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for call in (m.tool_calls or [])"
        + cut
        + " %}{{ call.function.name }} "
        + arguments
        + "{% endfor %}<|im_end|>\n{% endfor %}"
    )


def called() -> Problem:
    """A conversation with two calls in one message."""
    said = {"user": "Do you zoom?", "assistant": "", "tool": "Done."}
    messages: list[dict[str, Any]] = [{"role": role, "content": words} for role, words in said.items()]
    messages[1]["tool_calls"] = CALLS
    return Problem("p", messages)


@pytest.mark.parametrize(
    "arguments", ["{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}"]
)
@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_arguments_of_calls_are_written_once_as_json(load_policy: Any, kind: str, arguments: str) -> None:
    """They come as objects or, as in OpenAI's API, as JSON; and nothing in them is a special token."""
    template = template_of(arguments, "")
    policy = load_policy(kind)
    policy.tokenizer.chat_template = template
    [prompt] = policy.encode([called()])
    assert f"assistant\nzoom {BY}zoom {BY}<|im_end|>" in policy.tokenizer.decode(prompt.ids)
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert prompt.ids.tolist().count(end) == 3


@pytest.mark.parametrize("cut", ["[:1]", "[:0]"])
def test_calls_that_a_template_leaves_out_are_missed(load_policy: Any, cut: str) -> None:
    template = template_of("", cut)
    policy = load_policy("llama")
    policy.tokenizer.chat_template = template
    with pytest.raises(DataError, match="leaves out a call of 'zoom'"):
        policy.encode([called()])
