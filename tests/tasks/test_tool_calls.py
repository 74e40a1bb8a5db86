"""Tool calls in words: which there are, what each broken one comes to, and how calls are written."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.tasks.tool_calls import CallForm, ToolCalls, read_calls, written_call
from tables import yaml_cases

PARAMETERS = {
    "type": "object",
    "properties": {"box": {"type": "array"}, "label": {"type": "string"}, "level": {"type": "integer"}},
}
TOOLS = [{"type": "function", "function": {"name": "zoom", "parameters": PARAMETERS}}]
ZOOM = '{"name": "zoom", "arguments": {"box": [1, 2]}}'
CODER = (
    "<function=zoom>\n<parameter=box>\n[1, 2]\n</parameter>\n<parameter=label>\n7\n</parameter>\n</function>"
)


def read(text: str, finish: Finish = Finish.STOP, message: dict[str, Any] | None = None) -> ToolCalls:
    return read_calls(PolicyTurn(text, [], finish, 0, message=message), TOOLS)


def tagged(*contents: str) -> str:
    return "\n".join(f"<tool_call>\n{content}\n</tool_call>" for content in contents)


def spelled(text: str) -> str:
    return text.replace("ZOOM", ZOOM).replace("CODER", CODER)


@yaml_cases
def test_calls(text: str, calls: list[Any]) -> None:
    found = read(spelled(text))
    assert (found.calls, found.error) == ([Call(*call) for call in calls], "")
    assert (found.start is None) == (not calls)


@yaml_cases
def test_broken_calls(text: str, error: str) -> None:
    found = read(spelled(text))
    assert found.calls == [] and error in found.error and len(found.error) < 200


def test_brackets_without_an_end() -> None:
    found = read('<tool_call>{"name": "zoom", "arguments": {"box": ' + "[" * 100_000)
    assert found.calls == [] and "nested too deeply" in found.error


def test_a_call_that_was_cut_off_is_none() -> None:
    """A whole call in a message without an end: more calls, or other arguments, might have followed."""
    assert read(tagged(ZOOM), Finish.LENGTH) == ToolCalls(error="the tool call was cut off")
    assert read("no call", Finish.LENGTH) == ToolCalls()


@yaml_cases
def test_messages_that_transformers_has_read(message: dict[str, Any], calls: list[Any], error: str) -> None:
    """They are taken as they are: other forms in the text mean nothing then."""
    found = read(tagged('{"name": "back", "arguments": {}}'), message=message)
    assert found.calls == [Call(*call) for call in calls]
    assert error in found.error and bool(error) == bool(found.error)


MARKS = (
    "<tool_call> </tool_call> <think> </think> <function= <parameter= </parameter> </function> > zoom ``` "
    '<|python_tag|> ```{ {"name":"zoom", {"id": {name zoom( ) Action:'
)
PIECES = [*MARKS.split(), '{"name": ', '"zoom"', ', "arguments": ', *'{}[]"\\1\n', ZOOM]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=30).map("".join), st.sampled_from(Finish)
)
def test_nothing_raises(text: str, finish: Finish) -> None:
    """Whatever stands there: calls with JSON arguments, or an error, or neither, and always the same."""
    found = read(text, finish)
    assert found == read(text, finish)
    assert not (found.calls and found.error)
    assert json.loads(json.dumps([call.arguments for call in found.calls])) == [
        c.arguments for c in found.calls
    ]


@pytest.mark.parametrize("unit", [*PIECES, "<think></think>", "<tool_call><function=a><parameter=b>", " "])
def test_time_grows_with_the_text_only(unit: str) -> None:
    """A megabyte takes a moment, also behind the beginnings of calls."""
    for head in ("", "<tool_call>", "<tool_call><function=a>", '{"name": "'):
        started = time.process_time()
        read(head + unit * (1_000_000 // len(unit)))
        assert time.process_time() - started < 2.0


CALL = Call("submit", {"message": "Done.", "evidences": [1, 3]})


@pytest.mark.parametrize("form", ["tagged", "json"])
def test_what_is_written_is_read_again(form: CallForm) -> None:
    (read,) = read_calls(PolicyTurn(written_call(CALL, form), [], Finish.STOP, 0)).calls
    assert (read.name, read.arguments) == (CALL.name, CALL.arguments)


def test_spaced_texts_begin_with_a_space_and_nothing_else_changes() -> None:
    written = json.loads(written_call(CALL, "spaced"))
    assert written == {"name": "submit", "arguments": {"message": " Done.", "evidences": [1, 3]}}
