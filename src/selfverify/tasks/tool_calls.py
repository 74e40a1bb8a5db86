"""Reading the tool calls in what the policy has said.

Only the policy's own words are read, never those of an environment. Nothing raises on them, and a message
with a broken call has no calls: nothing of it may be carried out. Each form is read once, from left to right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.core.episode import PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.tasks.strict_json import json_at, read_json

_MARK = re.compile(r"<think>|<tool_call>|</tool_call>")
_SPACE = re.compile(r"\s*")
_LIKE_A_CALL = re.compile(r'\[?\s*\{\s*"name"\s*:')
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: its name, and its arguments as JSON values."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The calls of one message: none, one, several, or an error.

    Args:
        calls: In the order in which they were written; empty where there is an error.
        error: What is wrong with a call, in words for the policy; empty where nothing is.
        start: The character of the text at which the first call begins; None where there is none, or where
            the tokenizer's own response template has read the message.
    """

    calls: list[ToolCall] = field(default_factory=list)
    error: str = ""
    start: int | None = None


class _Broken(Exception):
    """What was meant as a call and is none; the message says why."""


def read_calls(said: PolicyTurn, tools: Sequence[Mapping[str, Any]] = ()) -> ToolCalls:
    """The tool calls in what the policy has said; whether the tools exist is not asked here.

    A message that the tokenizer's own response template has read is taken from there. Else these forms are
    known, outside of thoughts (``<think>...</think>``, also where the prompt has opened them already):

    - Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once or more often
    - Qwen3-Coder: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``
    - plain JSON: the whole message is ``{"name": ..., "arguments": {...}}`` (or ``parameters``), or a list of
      such, bare or in one fenced block

    JSON is strict (`strict_json.read_json`). Calls inside a call, calls that are not closed, closed twice,
    cut off, not JSON or without a name or arguments are errors.

    Args:
        said: What the policy has said.
        tools: As in `Problem.tools`. Values in Qwen3-Coder's form are text; one whose parameter is said to be
            no string is read as JSON.
    """
    try:
        if said.message is not None:
            found = ToolCalls(_of_message(said.message))
        else:
            found = _of_text(said.text, tools)
    except (_Broken, ValueError) as error:
        return ToolCalls(error=f"the tool call cannot be read: {error}")
    if found.calls and said.finish != Finish.STOP:
        return ToolCalls(error="the tool call was cut off")
    return found


def _of_message(message: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of a message that transformers has read; its arguments may hold what strict JSON refuses."""
    if "error" in message:
        raise _Broken(str(message["error"]))
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _Broken("tool_calls is no list")
    try:
        plain = read_json(json.dumps(calls, allow_nan=False))
    except (TypeError, RecursionError):
        raise _Broken("its arguments are no JSON") from None
    return [
        _call(call["function"] if isinstance(call, dict) and "function" in call else call) for call in plain
    ]


def _of_text(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCalls:
    """The calls in a text. Thoughts end with the first ``</think>``, as the prompt may have opened them."""
    thought = text.find("</think>")
    begin = position = 0 if thought < 0 else thought + len("</think>")
    calls: list[ToolCall] = []
    start = None
    while (mark := _MARK.search(text, position)) is not None:
        if mark.group() == "<think>":
            end = text.find("</think>", mark.end())
            position = len(text) if end < 0 else end
            continue
        if mark.group() == "</tool_call>":
            raise _Broken("</tool_call> stands without <tool_call>")
        start = mark.start() if start is None else start
        call, position = _tagged(text, _skip(text, mark.end()), tools)
        calls.append(call)
    return ToolCalls(calls, start=start) if calls else _bare(text, begin)


def _tagged(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, int]:
    """The call whose content begins at ``start``, and where the text goes on behind ``</tool_call>``."""
    if text.startswith("<tool_call>", start):
        raise _Broken("<tool_call> stands inside a tool call")
    if text.startswith("<function=", start):
        call, end = _function(text, start + len("<function="), tools)
    else:
        value, end = json_at(text, start)
        call = _call(value)
    end = _skip(text, end)
    if end == len(text):
        raise _Broken("</tool_call> is missing")
    if not text.startswith("</tool_call>", end):
        raise _Broken("something other than </tool_call> follows the call")
    return call, end + len("</tool_call>")


def _function(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, int]:
    """A call in Qwen3-Coder's form whose name begins at ``start``, and where ``</function>`` ends."""
    name, position = _label(text, start, "<function=")
    kinds = _parameters(tools, name)
    arguments: dict[str, Any] = {}
    while True:
        position = _skip(text, position)
        if text.startswith("</function>", position):
            return ToolCall(name, arguments), position + len("</function>")
        if not text.startswith("<parameter=", position):
            raise _Broken("neither <parameter=...> nor </function> follows")
        key, position = _label(text, position + len("<parameter="), "<parameter=")
        value, position = _until(text, position, "</parameter>", f"<parameter={key}>")
        if "<parameter=" in value:
            raise _Broken(f"the parameter {short_name(key)} is not closed")
        if key in arguments:
            raise _Broken(f"the parameter {short_name(key)} is given twice")
        arguments[key] = _value(value.removeprefix("\n").removesuffix("\n"), kinds.get(key))


def _skip(text: str, start: int) -> int:
    """Where white space from ``start`` on ends."""
    space = _SPACE.match(text, start)
    return start if space is None else space.end()


def _label(text: str, start: int, what: str) -> tuple[str, int]:
    """A name from ``start`` up to ``>``, and where that ends."""
    name, end = _until(text, start, ">", what)
    if not name.strip() or "<" in name or "\n" in name:
        raise _Broken(f"no name and > follow {short_name(what)}")
    return name, end


def _until(text: str, start: int, close: str, what: str) -> tuple[str, int]:
    """The text from ``start`` up to ``close``, and where that ends."""
    end = text.find(close, start)
    if end < 0:
        raise _Broken(f"{close} is missing behind {short_name(what)}")
    return text[start:end], end + len(close)


def _parameters(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The schemas of a tool's parameters by name; empty where there is no such tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties")
            return properties if isinstance(properties, dict) else {}
    return {}


def _value(text: str, schema: Any) -> Any:
    """A parameter's value: text, unless its schema names another type, and it can be read as JSON."""
    if not isinstance(schema, dict) or schema.get("type", "string") == "string":
        return text
    try:
        return read_json(text)
    except ValueError:
        return text


def _bare(text: str, begin: int) -> ToolCalls:
    """Calls that are the whole message as plain JSON. An answer in JSON that is no call is none."""
    body = text[begin:].strip()
    if body.startswith(_FENCE) and body.endswith(_FENCE) and body.count(_FENCE) == 2:
        body = body.removeprefix(_FENCE).removesuffix(_FENCE).removeprefix("json").strip()
    if not body.startswith(("{", "[")):
        return ToolCalls()
    meant = _LIKE_A_CALL.match(body) is not None
    try:
        value = read_json(body)
    except ValueError:
        if meant:
            raise
        return ToolCalls()
    values = value if isinstance(value, list) else [value]
    calls = [
        v for v in values if isinstance(v, dict) and "name" in v and {"arguments", "parameters"} & v.keys()
    ]
    if not calls:
        return ToolCalls()
    if len(calls) < len(values):
        raise _Broken("some entries of the list are no calls")
    return ToolCalls([_call(call) for call in calls], start=text.find(body[0], begin))


def _call(value: Any) -> ToolCall:
    """The call that a JSON value is."""
    if not isinstance(value, dict):
        raise _Broken("it is no JSON object")
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise _Broken("it has no name")
    if not isinstance(arguments, dict):
        raise _Broken("its arguments are no JSON object")
    if extra := value.keys() - {"name", "arguments", "parameters", "id", "type"}:
        raise _Broken(f"it has an unknown key {short_name(min(extra))}")
    if {"arguments", "parameters"} <= value.keys():
        raise _Broken("it has arguments and parameters")
    return ToolCall(value["name"], arguments)


def short_name(name: str) -> str:
    """A name from a model as it stands in a message: quoted, and not too long."""
    return repr(name if len(name) <= 60 else name[:57] + "...")
