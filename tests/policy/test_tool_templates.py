"""Tools and the chat template: how tools, calls and results are written, what a response template reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.policy.conftest import noise_image
from transformers.utils.chat_template_utils import render_jinja_template

from selfverify.core.episode import Call, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.chat import LONGEST, read_message
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from selfverify.tasks.tool_calls import read_calls
from tables import read_tables, yaml_cases

TABLES = read_tables(Path(__file__).with_suffix(".yaml"))
TOOLS: list[dict[str, Any]] = TABLES["tools"]
PARTS, ITSELF, TURNS, PROMPT = TABLES["templates"].values()
HERMES = PARTS + ITSELF + PROMPT
"""Messages of tools have turns of their own."""
QWEN3 = "{%- set begin, empty = '', '' -%}" + PARTS + TURNS + PROMPT
"""Messages of tools are turns of the user; thoughts before the user's last turn are dropped."""
BEGIN = r"{%- set begin, empty = '<think>\n', '\n</think>\n\n' -%}"
THINKING = BEGIN + PARTS + TURNS + PROMPT.replace(r"nt\n", r"nt\n<think>\n")
"""The same of a model whose prompt begins its thoughts."""
SAID = '<tool_call>\n{"name": "zoom", "arguments": {"factor": 2}}\n</tool_call>'


def with_template(load_policy: Any, template: str | None, kind: str = "tiny") -> Policy:
    policy = load_policy(kind)
    if template is not None:
        policy.tokenizer.chat_template = template
    return policy


@pytest.mark.parametrize("template", [HERMES, QWEN3, THINKING])
@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_tools_are_shown_and_their_results_written_by_the_template(
    load_policy: Any, template: str, kind: str
) -> None:
    """Prompt, a call as sampled and the reply's tokens are the conversation as the template writes it."""
    policy = with_template(load_policy, template, kind)
    problem = Problem("p", user_turn("How many?", images=0), tools=TOOLS)
    [prompt] = policy.encode([problem])
    assert '"name": "zoom"' in policy.tokenizer.decode(prompt.ids)
    said = f"Closer.\n</think>\n\n{SAID}" if template == THINKING else SAID
    sampled = policy.tokenizer(f"{said}<|im_end|>", add_special_tokens=False)["input_ids"]
    reply = ReplyEncoder(policy.encoder).encode(problem, Observation("It shows 3.", role="tool"), 1)
    heard = without_written_end(sampled, reply)
    messages = [
        *problem.messages,
        {"role": "assistant", "content": [{"type": "text", "text": said}]},
        {"role": "tool", "content": [{"type": "text", "text": "It shows 3."}]},
    ]
    [whole] = policy.encode([Problem("p", messages, tools=TOOLS)])
    assert prompt.ids.tolist() + sampled + list(heard.tokens) == whole.ids.tolist()
    speaker = "tool" if template == HERMES else "user"
    shown = policy.tokenizer.decode(heard.tokens)
    assert f"<|im_start|>{speaker}\n<tool_response>\nIt shows 3.\n</tool_response><|im_end|>\n" in shown


@pytest.mark.parametrize("template", [HERMES, QWEN3])
def test_a_tool_shows_images(load_policy: Any, template: str) -> None:
    policy = with_template(load_policy, template)
    problem = Problem("p", user_turn("How many?"), [noise_image(1)], tools=TOOLS)
    parts = [{"type": "text", "text": "Twice as large:"}, {"type": "image"}]
    reply = ReplyEncoder(policy.encoder).encode(
        problem, Observation(parts, [noise_image(2, 84, 56)], "tool"), 1
    )
    placeholder = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert reply.tokens.count(placeholder) == reply.images[0].placeholders > 1
    text = policy.tokenizer.decode([token for token in reply.tokens if token != placeholder])
    assert "<tool_response>\nTwice as large:<|vision_start|><|vision_end|>\n</tool_response>" in text


def test_tools_that_a_template_does_not_show_are_described_in_words(load_policy: Any) -> None:
    """In the first message, with the form of calls; else the policy would never learn of them."""
    policy = with_template(load_policy, None)
    [prompt] = policy.encode([Problem("p", user_turn("How many?", images=0), tools=TOOLS)])
    told = policy.tokenizer.decode(prompt.ids)
    assert told.index('"name": "zoom"') < told.index('<tool_call>\n{"name": "NAME"') < told.index("How many?")


@yaml_cases
def test_calls_of_each_family_are_read(family: str, form: str | None) -> None:
    """As the family's own template writes them behind its own prompt."""
    trl = pytest.importorskip("trl")
    template = (Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja").read_text("utf-8")
    asked = {"role": "user", "content": [{"type": "text", "text": "Look."}]}
    asked = asked if form is None else {"role": "user", "content": "Look."}
    wanted = {"name": "zoom", "arguments": {"factor": 2}}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": wanted}]}
    given = {"tools": TOOLS, "chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    [prompt], _ = render_jinja_template([[asked]], add_generation_prompt=True, **given)
    assert ("zoom" in prompt) == (form is not None)
    if form is None:
        return
    [whole], _ = render_jinja_template([[asked, called]], **given)
    said = whole.removeprefix(prompt)
    read = read_calls(PolicyTurn(said, [], Finish.STOP, 0), TOOLS)
    marks = {
        "hermes": '<tool_call>\n{"name": "zoom"', "xml": "<function=zoom>",
        "json": '"parameters": {"factor": 2}', "own": "<|tool_call>call:zoom{factor:2}",
    }  # fmt: skip
    assert whole != prompt and marks[form] in said
    if form == "own":  # its tokenizer brings a response template; without it the policy is told
        assert "the tokenizer's response template" in read.error
    else:
        assert read.calls == [Call("zoom", {"factor": 2})]


@yaml_cases
def test_a_template_that_cannot_go_on_is_refused(
    load_policy: Any, template: str, role: str, reason: str
) -> None:
    whole = {"HERMES": HERMES, "MUTE": QWEN3.replace("{{ content }}", ""), "THINKING": THINKING}
    for name, text in whole.items():
        template = template.replace(name, text)
    policy = with_template(load_policy, template)
    tools = {"tools": TOOLS} if role == "tool" else {}
    problem = Problem("p", user_turn("How many?", images=0), **tools)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"problem p: .*{reason}"):
        ReplyEncoder(policy.encoder).encode(problem, Observation("Sure?", role=role), 1)


@pytest.fixture
def reading_policy(load_policy: Any) -> Policy:
    """Its tokenizer has a response template, and its prompt begins the thoughts."""
    policy = with_template(load_policy, THINKING)
    policy.tokenizer.response_template = TABLES["response"]
    return policy


def test_a_response_template_reads_the_message(reading_policy: Policy) -> None:
    found = read_message(reading_policy.loaded, f"Closer.</think>\n\nSo:\n{SAID}<|im_end|>", TOOLS)
    assert found == {
        "role": "assistant",
        "reasoning_content": "Closer.",
        "content": "So:",
        "tool_calls": [{"type": "function", "function": {"name": "zoom", "arguments": {"factor": 2}}}],
    }
    thought = read_message(reading_policy.loaded, f"Shall I? {SAID}</think>No.<|im_end|>", TOOLS)
    assert "tool_calls" not in thought and thought["content"] == "No."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "</think><tool_call>__import__('os').abort()</tool_call>",
            "the message cannot be read: json parser",
        ),
        ("</think><tool_call>" + "[" * 50_000, "the message cannot be read: "),
        ("x" * (LONGEST + 1), "longer than 100000 characters"),
    ],
)
def test_what_a_response_template_cannot_read(reading_policy: Policy, text: str, error: str) -> None:
    found = read_message(reading_policy.loaded, text, TOOLS)
    assert found["error"].startswith(("the message", error)) and error in found["error"]
    assert len(found["error"]) <= 500


EMPTY = r"{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
OPTIONAL_THOUGHTS = QWEN3.replace(r"assistant\n' }}", r"assistant\n' }}" + EMPTY)
"""As Qwen3's: told not to think, a prompt begins with empty thoughts, which earlier messages do not have."""


def test_a_template_can_be_told_to_leave_thoughts_out(load_policy: Any) -> None:
    policy = load_policy(template_options={"enable_thinking": False})
    policy.tokenizer.chat_template = OPTIONAL_THOUGHTS
    problem = Problem("p", user_turn("How many?", images=0), tools=TOOLS)
    prompt = policy.tokenizer.decode(policy.encode([problem])[0].ids)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    reply = ReplyEncoder(policy.encoder).encode(problem, Observation("It shows 3.", role="tool"), 1)
    shown = policy.tokenizer.decode(reply.tokens)
    assert shown == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nIt shows 3.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert policy.frozen_copy().loaded.template_options == {"enable_thinking": False}


def test_options_of_the_template_cannot_be_what_we_say_ourselves() -> None:
    with pytest.raises(ValidationError, match="the library sets tools itself"):
        PolicyConfig(template_options={"tools": True})


# --- calls in a problem's messages ----------------------------------------------------------------------

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
    policy = with_template(load_policy, template_of(arguments, ""), kind)
    [prompt] = policy.encode([called()])
    assert f"assistant\nzoom {BY}zoom {BY}<|im_end|>" in policy.tokenizer.decode(prompt.ids)
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert prompt.ids.tolist().count(end) == 3


@pytest.mark.parametrize("cut", ["[:1]", "[:0]"])
def test_calls_that_a_template_leaves_out_are_missed(load_policy: Any, cut: str) -> None:
    policy = with_template(load_policy, template_of("", cut), "llama")
    with pytest.raises(DataError, match="leaves out a call of 'zoom'"):
        policy.encode([called()])
