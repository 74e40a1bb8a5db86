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


BOXED = Call("zoom", {"box": [1, 2]})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", []),
        ("<think>2 and 3</think><answer>5</answer>", []),
        (tagged(ZOOM), [BOXED]),
        (f"I look closer.\n{tagged(ZOOM)}\n", [BOXED]),
        (tagged(ZOOM, '{"name": "back", "arguments": {}}'), [BOXED, Call("back", {})]),
        (tagged(ZOOM, ZOOM), [BOXED, BOXED]),
        (tagged(CODER), [Call("zoom", {"box": [1, 2], "label": "7"})]),
        # No such tool, and a value that is no JSON: text, which the schema's check will judge.
        (tagged("<function=x><parameter=a>1</parameter></function>"), [Call("x", {"a": "1"})]),
        (tagged(CODER.replace("2]", "")), [Call("zoom", {"box": "[1, ", "label": "7"})]),
        (ZOOM, [BOXED]),
        (f" [{ZOOM}, {ZOOM}]\n", [BOXED, BOXED]),
        (f"```json\n{ZOOM}\n```", [BOXED]),
        ('{"name": "zoom", "parameters": {"box": [1, 2]}}', [BOXED]),
        # Behind, between and before words, in any model's form.
        ('<|python_tag|>{"name": "zoom", "parameters": {"box": [1, 2]}}<|eom_id|>', [BOXED]),
        (f"<|python_tag|>{ZOOM}; {ZOOM}", [BOXED, BOXED]),
        (f"I look closer.\n\n{ZOOM}", [BOXED]),
        (f"{ZOOM}\n\nI look closer.", [BOXED]),
        (f"I look closer: [{ZOOM}, {ZOOM}] {{so}}", [BOXED, BOXED]),
        (f"I look closer.\n```json\n{ZOOM}\n```\nSo.", [BOXED]),
        (f"As ```json\n{{}}\n``` says.\n```tool_code\n{ZOOM}\n```", [BOXED]),
        ('Unknown.\n```\n{"name": "x", "arguments": {}}\n```', [Call("x", {})]),
        (CODER, [Call("zoom", {"box": [1, 2], "label": "7"})]),
        (f"I look closer.\n{CODER}\n</s>", [Call("zoom", {"box": [1, 2], "label": "7"})]),
        (f'Look: {{"type": "function", "function": {ZOOM}}}', [BOXED]),
        ('Look: {"arguments": {"box": [1, 2]}, "name": "zoom"}', [BOXED]),
        ('Look: {"id": "a", "name": "zoom", "arguments": null}', [Call("zoom", {})]),
        # Integers as texts and as 3.0; what is no integer is left to the schema's check.
        *((f'{{"name": "zoom", "arguments": {{"level": {given}}}}}', [Call("zoom", {"level": level})])
          for given, level in (('"3"', 3), ("3.0", 3), ('" -3 "', -3), ("3.5", 3.5), ('"three"', "three"))),
        ("<function=zoom><parameter=level>3.0</parameter></function>", [Call("zoom", {"level": 3})]),
        (tagged('{"name": "zoom", "arguments": {"label": "3"}}'), [Call("zoom", {"label": "3"})]),
        # Words and JSON that name no tool.
        ('Alice is {"name": "Alice", "arguments": {}}.', []),
        ('```json\n{"name": "Alice", "age": 3}\n```', []),
        ('My zoom is {"answer": 3} or [{"a": 1}].', []),
        (f"<think>{ZOOM} <|python_tag|></think>No.", []),
        # Answers in JSON, and in words that mention a tool.
        ('{"answer": 3}', []),
        ('{"summary": "I used the zoom", "action": "zoomed"}', []),
        ("I used my zoom (once); its name was zoom. My action: a zoom.", []),
        ("<answer>I have called zoom(1, 2).</answer>", []),
        (f'[TOOL_CALLS][{ZOOM}]', [BOXED]),
        ("{not json", []),
        ("[1, 2]", []),
        # Thoughts are no calls, whether the prompt or the policy has begun them.
        (f"<think>Shall I? {tagged(ZOOM)}</think>No.", []),
        (f"Shall I? {tagged(ZOOM)}</think>\n\nNo.", []),
        (f"Well.</think>{tagged(ZOOM)}", [BOXED]),
        (f"<think>Well.</think>{tagged(ZOOM)}<think>{tagged(ZOOM)}</think>", [BOXED]),
        (f"<think>without an end {tagged(ZOOM)}", []),
        (f"<think>What?</think>\n{ZOOM}", [BOXED]),
        # What a string says is a string.
        (tagged('{"name": "type", "arguments": {"text": "<tool_call></tool_call>"}}'),
         [Call("type", {"text": "<tool_call></tool_call>"})]),
        (tagged('{"name": "__import__(\'os\')", "arguments": {"a": "exit()"}}'),
         [Call("__import__('os')", {"a": "exit()"})]),
    ],
)  # fmt: skip
def test_calls(text: str, calls: list[Call]) -> None:
    found = read(text)
    assert (found.calls, found.error) == (calls, "")
    assert (found.start is None) == (not calls)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>", "Expecting value"),
        (f"<tool_call>{ZOOM}", "</tool_call> is missing"),
        (f"<tool_call>{ZOOM[:-1]}</tool_call>", "Expecting ',' delimiter"),
        (tagged("zoom(1, 2)"), "Expecting value"),
        (tagged("{'name': 'zoom', 'arguments': {}}"), "Expecting property name"),
        (tagged(tagged(ZOOM)), "stands inside a tool call"),
        (tagged(ZOOM + ZOOM), "something other than </tool_call> follows"),
        (f"{tagged(ZOOM)}</tool_call>", "stands without <tool_call>"),
        (f"</tool_call>{tagged(ZOOM)}", "stands without <tool_call>"),
        (tagged(ZOOM, "{}"), "it has no name"),
        (tagged("[]"), "it is no JSON object"),
        (tagged('{"name": 3, "arguments": {}}'), "it has no name"),
        (tagged('{"name": "zoom"}'), "arguments are no JSON object"),
        (tagged('{"name": "zoom", "arguments": "{}"}'), "arguments are no JSON object"),
        (tagged('{"name": "zoom", "arguments": {}, "reward": 1}'), "unknown key 'reward'"),
        (tagged('{"name": "zoom", "arguments": {}, "parameters": {}}'), "arguments and parameters"),
        (tagged('{"name": "zoom", "name": "back", "arguments": {}}'), "a key appears twice"),
        (tagged('{"name": "zoom", "arguments": {"box": NaN}}'), "NaN is not JSON"),
        (tagged('{"name": "zoom", "arguments": {"box": ' + "[" * 100_000), "nested too deeply"),
        (tagged("<function=zoom"), "no name and > follow"),
        ("<tool_call><function=zoom", "> is missing behind '<function='"),
        (tagged("<function=zoom>"), "neither <parameter=...> nor </function>"),
        (tagged("<function=zoom><parameter=box>[1]</function>"), "</parameter> is missing behind"),
        (tagged(CODER.replace("]\n</parameter>", "]")), "the parameter 'box' is not closed"),
        (tagged(CODER.replace("label", "box")), "the parameter 'box' is given twice"),
        (ZOOM[:-1], "Expecting ',' delimiter"),
        (f'[{ZOOM}, {{"a": 1}}]', "some entries of the list are no calls"),
        (f"[{ZOOM}, {ZOOM[:-1]}]", "Expecting ',' delimiter"),
        ("<|python_tag|>zoom.call(box=[1, 2])", 'a call is {"name": ..., "arguments": {...}}'),
        ('<|python_tag|>{"box": [1, 2]}', 'a call is {"name": ..., "arguments": {...}}'),
        (f"I look closer.\n{ZOOM[:-1]}", "Expecting ',' delimiter"),
        (f"I look closer.\n```json\n{ZOOM[:-1]}\n```", "Expecting ',' delimiter"),
        (f"I look closer.\n```json\n{ZOOM}\nand more", "something other than the end of its block"),
        ('I look closer. {"name": "zoom"}', "arguments are no JSON object"),
        (f'I look closer. {{"action": {ZOOM}}}', "it stands in other JSON"),
        ("I look closer. <function=zoom>", "neither <parameter=...> nor </function>"),
        *((text, "its form is not known here; a call is {") for text in (
            "{'name': 'zoom', 'arguments': {'box': [1, 2]}}", 'So: {“name”: “zoom”, “arguments”: {}}',
            '{"tool": "zoom", "arguments": {}}', '{"id": 1, "tool_name" : "zoom" }', "[zoom(box=[1, 2])]",
            "zoom(box=[1,\n2])", "```tool_code\nzoom(box=[1])\n```", "So.\nAction: zoom\nAction Input: {}",
            '[TOOL_CALLS]zoom[ARGS]{"box": [1]}', '✿FUNCTION✿: zoom\n✿ARGS✿: {}',
            '<function name="zoom">{}</function>', 'So. <invoke name="zoom"></invoke>',
            "<|tool_call_start|>[zoom()]<|tool_call_end|>", "<think>So.</think> to=functions.zoom {}",
            "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>zoom\n```json\n{}\n```",
            '<|tool_calls_section_begin|>functions.zoom:0<|tool_call_argument_begin|>{}',
        )),
    ],
)  # fmt: skip
def test_broken_calls(text: str, error: str) -> None:
    found = read(text)
    assert found.calls == [] and error in found.error and len(found.error) < 200


def test_a_call_that_was_cut_off_is_none() -> None:
    """A whole call in a message without an end: more calls, or other arguments, might have followed."""
    assert read(tagged(ZOOM), Finish.LENGTH) == ToolCalls(error="the tool call was cut off")
    assert read("no call", Finish.LENGTH) == ToolCalls()


@pytest.mark.parametrize(
    ("message", "calls", "error"),
    [
        ({"content": tagged(ZOOM)}, [], ""),
        ({"tool_calls": [{"type": "function", "function": json.loads(ZOOM)}]}, [BOXED], ""),
        ({"tool_calls": [json.loads(ZOOM)]}, [BOXED], ""),
        ({"error": "no end"}, [], "no end"),
        ({"tool_calls": "zoom"}, [], "tool_calls is no list"),
        ({"tool_calls": [{"function": None}]}, [], "it is no JSON object"),
        ({"tool_calls": [{"function": {"name": "zoom", "arguments": "{}"}}]}, [], "no JSON object"),
        ({"tool_calls": [{"name": "zoom", "arguments": {"a": float("nan")}}]}, [], "Out of range float"),
        ({"tool_calls": [{"name": "zoom", "arguments": {"a": object()}}]}, [], "no JSON"),
        ({"tool_calls": [{"name": "zoom", "arguments": {"a": 10**20}}]}, [], "too many digits"),
    ],
)
def test_messages_that_transformers_has_read(message: dict[str, Any], calls: list[Call], error: str) -> None:
    """They are taken as they are: other forms in the text mean nothing then."""
    found = read(tagged('{"name": "back", "arguments": {}}'), message=message)
    assert found.calls == calls and error in found.error and bool(error) == bool(found.error)


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
