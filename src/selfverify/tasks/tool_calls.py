"""Tools, functions of an environment that the policy may call: reading their calls and writing them.

Only the policy's own words are read, never those of an environment. Nothing raises on them, and a message
with a broken call has no calls: nothing of it may be carried out. Each form is read once, from left to right;
JSON is read whole or not at all.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NoReturn, NotRequired, get_type_hints

from PIL.Image import Image
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish

MAX_DIGITS = 15


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("an integer of too many digits")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_refuse
)


def read_json(text: str) -> Any:
    """Read ``text`` as one JSON value, and nothing else.

    Raises:
        ValueError: It is not JSON, nests too deeply, or holds a key twice, NaN, an infinity, a number out of
            a float's range or an integer of more than 15 digits.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, and where it ends; errors are those of `read_json`."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_MARK = re.compile(
    r"<think>|</?tool_call>|<\|tool_call>|<function=|<\|python_tag\|>\s*|```\w*\s*(?=[\[{])|\{|\[(?=\s*\{)"
)
_FENCE, _FORM = "```", '{"name": ..., "arguments": {...}}'
_SPACE = re.compile(r"\s*")
_WHOLE = re.compile(r"\s*-?[0-9]{1,15}(?:\.0)?\s*")
_LIKE_A_CALL = re.compile(r'\[?\s*\{\s*"name"\s*:')
_OPENING = re.compile(r"\s*(?:(?:<tool_call>|```\w*)\s*)?(?=[\[{])")
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_ANSWERED = re.compile(r"</(?:answer|score)>\s*$")
_ATTEMPT = r"""
    </?(?:tool|function(?:_calls?)?|invoke|call|action|{names})\b | <\W?tool | \[TOOL_CALLS\]    # tags
    | ✿FUNCTION✿ | \bto=(?:functions\.|(?:{names})\b)
    | ^[^\w\n]*(?:next\ )?(?:action|tool|function|call|动作|行动|操作|工具)        # Action: crop(
      (?:\ (?:\d+|name|call))?\W{{0,3}}[:：]\W{{0,5}}(?:(?:{names})\b|\w+[(\[])
    | \b(?:{names})\(\s*(?:[-\d\[{{"')]|\w+\s*[=:])                        # crop(1, ...), crop(image=1)
    | (?:\b|function)(?:{names})(?::\d+)?[^\w{{]{{0,9}}(?:json\s*)?\{{\s*(?:["'}}]|\w+\s*:)  # crop {{"image"
    | \b(?:{names})\W{{0,4}}[^\w\ ,.]\W{{0,4}}(?:arg(?:ument)?s?|arg_key|parameters|call_id)\b  # crop[ARGS]
    | [\[({{]\s*["'](?:{names})["']                                         # ["crop", 1, ...]
    | \b(?:(?:tool_|recipient_)?name|tool|function|api|command|action(?:_type)?)["'“”]?\s*[:：=]\s*["'“]
      (?:functions\.)?(?:{names})["'”]
    | \A\W*(?-i:{names})(?:[ ,]+(?:\w+=[^\s=,]+|-?\d[\d.]*))*\W*\Z         # crop; crop 1, 2; crop image=1
"""
"""Marks of a call in words that are none, for tools of these ``names``."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The calls of one message: none, one, several, or an error.

    Args:
        calls: In the order in which they were written; empty where there is an error.
        error: The fault of a call, in words for the policy; empty where nothing is.
        start: The character of the text at which the first call begins; None where there is none, or where
            the tokenizer's own response template has read the message.
    """

    calls: list[Call] = field(default_factory=list)
    error: str = ""
    start: int | None = None


class _Broken(Exception):
    """A text was meant as a call and is none; the message says why."""


def read_calls(said: PolicyTurn, tools: Sequence[Mapping[str, Any]] = ()) -> ToolCalls:
    """The tool calls in what the policy has said; whether the tools exist is not asked here.

    A message that the tokenizer's own response template has read is taken from there. Else these forms are
    known, outside of thoughts (``<think>...</think>``, also where the prompt has opened them already):

    - Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once or more often
    - Qwen3-Coder: ``<function=NAME><parameter=KEY>VALUE</parameter></function>``, between these tags or bare
    - Llama 3.1: ``<|python_tag|>{"name": ..., "parameters": {...}}``
    - a fenced block, or the whole message: ``{"name": ..., "arguments": {...}}``, or a list of such
    - the same behind or before words, where it names one of ``tools``

    JSON is strict (`read_json`). Calls inside a call, calls that are not closed, closed twice,
    cut off, not JSON or without a name or arguments are errors. So are, where there are ``tools``, words that
    were meant as a call in another form (`is_attempted`).

    Args:
        said: The policy's turn.
        tools: As in `Problem.tools`. Values in Qwen3-Coder's form are text; one whose parameter is said to be
            no string is read as JSON. Whole numbers that are written as texts or as 3.0 become integers where
            the schema says so, as servers' parsers do it.
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
    return replace(found, calls=[_with_integers(call, tools) for call in found.calls])


def _of_message(message: Mapping[str, Any]) -> list[Call]:
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
    return [_call(call) for call in plain]


def _of_text(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCalls:
    """The calls in a text. Thoughts end with the first ``</think>``, as the prompt may have opened them.

    No text is read twice, and a text that was meant as a call and is none ends the reading: the time is
    linear.
    """
    position = begin = _skip(text, thoughts_end(text))
    names = [tool.get("function", tool).get("name", "") for tool in tools]
    # Without tools nothing is named: the pattern matches nowhere.
    named = re.compile(rf'"name"\s*:\s*"(?:{"|".join(map(re.escape, names)) or "(?!)"})"')
    last = max((match.start() for match in named.finditer(text, begin)), default=-1)
    calls: list[Call] = []
    start = None
    while (mark := _MARK.search(text, position)) is not None:
        position, at = mark.end(), mark.start()
        opening = mark.group()
        if opening == "<think>":
            end = text.find("</think>", position)
            position = len(text) if end < 0 else end
            continue
        if opening == "</tool_call>":
            raise _Broken("</tool_call> stands without <tool_call>")
        if opening == "<|tool_call>":
            raise _Broken(f"Gemma's form needs the tokenizer's response template; else a call is {_FORM}")
        if opening == "<tool_call>":
            call, position = _tagged(text, _skip(text, position), tools)
            found = [call]
        elif opening == "<function=":
            call, position = _function(text, position, tools)
            found = [call]
        else:
            tagged, fenced, alone = opening[0] == "<", opening[0] == "`", at == begin
            inside = position if tagged or fenced else at
            like = (fenced or alone) and _LIKE_A_CALL.match(text, inside) is not None
            meant = tagged or like or inside < last
            if not meant and not alone:
                continue
            try:
                value, position = json_at(text, inside)
            except ValueError as error:
                if meant:
                    raise _Broken(f"{error}; a call is {_FORM}" if tagged else str(error)) from None
                continue
            found = _calls_of(value, names, tagged or fenced or alone)
            if not found and (tagged or named.search(text, inside, position)):
                raise _Broken(f"it stands in other JSON; a call is {_FORM}")
            if fenced:
                closed = text.startswith(_FENCE, end := _skip(text, position))
                if found and not closed:
                    raise _Broken("something other than the end of its block follows it")
                position = end + len(_FENCE) * closed
        start = at if start is None and found else start
        calls += found
    if not calls and names and is_attempted(without_thoughts(text), names):
        raise _Broken(f"its form is not known here; a call is {_FORM}")
    return ToolCalls(calls, start=start)


def without_thoughts(text: str) -> str:
    """Return what stands outside of thoughts, see `thoughts_end`."""
    return _THOUGHTS.sub("", text[thoughts_end(text) :])


def thoughts_end(text: str) -> int:
    """Return where the thoughts end that the prompt has opened: behind the first ``</think>``; 0 without one.

    One within JSON with which the text begins, or behind it with a ``<think>`` of its own, ends none.
    """
    end = text.find("</think>")
    if end >= 0 and (opening := _OPENING.match(text)) is not None:
        with suppress(ValueError):
            _, closed = json_at(text, opening.end())
            if closed > end or "<think>" in text[closed:end]:
                return 0
    return 0 if end < 0 else end + len("</think>")


def is_attempted(words: str, names: Collection[str], also: str = "(?!)") -> bool:
    """Return whether words without a call that can be read were meant as one, in whichever form.

    They were not where they end with the tag of an answer or a score.

    Args:
        words: A message without its thoughts.
        names: The names of the tools, in whichever writing.
        also: A pattern of further marks of a call, like `_ATTEMPT`.
    """
    known = "|".join(f"{re.escape(name).replace('_', '[_ -]?')}(?:_?action)?" for name in names if name)
    pattern = f"{_ATTEMPT}|{also}".format(names=known or "(?!)")
    flags = re.VERBOSE | re.IGNORECASE | re.MULTILINE
    return not _ANSWERED.search(words) and re.search(pattern, words, flags) is not None


def _tagged(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> tuple[Call, int]:
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


def _function(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> tuple[Call, int]:
    """A call in Qwen3-Coder's form whose name begins at ``start``, and where ``</function>`` ends."""
    name, position = _label(text, start, "<function=")
    kinds = _parameters(tools, name)
    arguments: dict[str, Any] = {}
    while True:
        position = _skip(text, position)
        if text.startswith("</function>", position):
            return Call(name, arguments), position + len("</function>")
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
    """Return the place where white space from ``start`` on ends."""
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too


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


def _calls_of(value: Any, names: Sequence[str], whole: bool) -> list[Call]:
    """The calls that a JSON value is; none where it is an answer in JSON.

    Args:
        value: The value.
        names: The tools' names.
        whole: Whether it stands by itself: then it may name a tool that does not exist, too.
    """
    values = value if isinstance(value, list) else [value]
    calls = []
    for entry in values:
        call = entry.get("function", entry) if isinstance(entry, dict) else None
        if isinstance(call, dict) and "name" in call:
            complete = whole and call is entry and {"arguments", "parameters"} & call.keys()
            calls += [entry] * (call["name"] in names or bool(complete))
    if calls and len(calls) < len(values):
        raise _Broken("some entries of the list are no calls")
    return [_call(call) for call in calls]


def _call(value: Any) -> Call:
    """The call that a JSON value is; servers write it into ``function``."""
    value = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(value, dict):
        raise _Broken("it is no JSON object")
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise _Broken("it has no name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    # No arguments at all may be written as null.
    arguments = {} if given == [None] else given[0] if given else None
    if not isinstance(arguments, dict):
        raise _Broken("its arguments are no JSON object")
    if extra := value.keys() - {"name", "arguments", "parameters", "id", "type"}:
        raise _Broken(f"it has an unknown key {short_name(min(extra))}")
    if len(given) > 1:
        raise _Broken("it has arguments and parameters")
    return Call(value["name"], arguments)


def _with_integers(call: Call, tools: Sequence[Mapping[str, Any]]) -> Call:
    """Return a call in which texts and numbers such as 3.0 are integers where the schema says integer."""
    kinds = _parameters(tools, call.name)
    arguments = dict(call.arguments)
    for key, value in arguments.items():
        schema = kinds.get(key)
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            whole, value = True, float(value)
        if whole and isinstance(schema, dict) and schema.get("type") == "integer":
            arguments[key] = int(value)
    return Call(call.name, arguments)


def short_name(name: str) -> str:
    """A name from a model as it stands in a message: quoted, and not too long."""
    return repr(name if len(name) <= 60 else name[:57] + "...")


Shown = str | Image | Sequence[str | Image]
"""Values that a tool may return to be shown: a text, an image, or several in order."""


class ToolError(Exception):
    """A tool cannot do what it was asked. The message is for the policy, and the conversation goes on."""


class _Untitled(GenerateJsonSchema):
    """Schemas without titles, which say nothing that the names do not."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Tool:
    """A method that the policy may call; see `tool`.

    Args:
        function: The method. Its parameters have annotations; ``Annotated[int, Field(description=...)]`` says
            what one means. The first paragraph of its docstring says what the tool does.
        ends: Whether a call that succeeds ends the conversation.

    Raises:
        ConfigError: A parameter has no annotation, or is ``*args`` or ``**kwargs``.
    """

    def __init__(self, function: Callable[..., Any], ends: bool = False) -> None:
        self.function, self.ends, self.name = function, ends, function.__name__
        hints = get_type_hints(function, include_extras=True)
        arguments: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
            if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"tool {self.name}: parameter {name} needs an annotation and must be a plain one"
                )
            arguments[name] = (
                hints[name] if parameter.default is parameter.empty else NotRequired[hints[name]]
            )
        strict = with_config(ConfigDict(extra="forbid", strict=True))
        self._arguments = TypeAdapter[dict[str, Any]](strict(TypedDict(self.name, arguments)))  # type: ignore

    def __get__(self, episode: Any, kind: type) -> Any:
        """The method bound to its episode, as of any method; of the class the tool itself."""
        return self if episode is None else partial(self.function, episode)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as it stands in `Problem.tools`."""
        return tool_schema(self.name, inspect.getdoc(self.function) or "", self._arguments)

    def fitted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the method takes them; types are not converted.

        Raises:
            ToolError: They do not fit.
        """
        try:
            return self._arguments.validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            raise ToolError(misfit(self.name, error)) from None


def tool_schema(name: str, described: str, arguments: TypeAdapter[Any]) -> dict[str, Any]:
    """A tool as it stands in `Problem.tools`.

    Args:
        name: Its name.
        described: Its purpose; the first paragraph is shown.
        arguments: Its arguments.
    """
    parameters = arguments.json_schema(schema_generator=_Untitled)
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": " ".join(described.split("\n\n")[0].split()),
            "parameters": {
                "type": "object",
                "properties": {},
                **{k: v for k, v in parameters.items() if k in ("$defs", "properties", "required")},
            },
        },
    }


def misfit(name: str, error: ValidationError) -> str:
    """Return why arguments do not fit the tool ``name``, in words for the policy."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    said = []
    for fault in faults[:3]:
        parts = [str(part) if isinstance(part, int) else short_name(part) for part in fault["loc"]]
        said.append(f"{'.'.join(parts)}: {fault['msg']}")
    return f"the arguments of {name} do not fit: {'; '.join(said)}"


def chosen_tool(
    tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]
) -> tuple[Tool, dict[str, Any]]:
    """The tool that is called, and the arguments as its method takes them.

    Raises:
        ToolError: There is no such tool, or its arguments do not fit.
    """
    if (tool := tools.get(name)) is None:
        raise ToolError(f"there is no tool {short_name(name)}; there are {', '.join(tools)}")
    return tool, tool.fitted(arguments)


def tool(function: Callable[..., Any] | None = None, *, ends: bool = False) -> Any:
    """Marks a method of a `ToolEpisode` as a tool that the policy may call.

    Args:
        function: The method.
        ends: Whether a call that succeeds ends the conversation.
    """
    return partial(tool, ends=ends) if function is None else Tool(function, ends)


CallForm = Literal["tagged", "json", "spaced"]
"""How calls are written: between ``<tool_call>`` tags with words before them, as plain JSON alone, or as
plain JSON whose texts begin with a space, so that a word is the same token in a call as in what was read."""


def written_call(call: Call, form: CallForm, why: str = "") -> str:
    """A message with one call.

    Args:
        call: The call.
        form: How it is written.
        why: Words before it; plain JSON leaves no room for them.
    """
    arguments = dict(call.arguments)
    if form == "spaced":
        arguments = {key: f" {text}" if isinstance(text, str) else text for key, text in arguments.items()}
    body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    if form != "tagged":
        return body
    return f"{why}\n<tool_call>\n{body}\n</tool_call>" if why else f"<tool_call>\n{body}\n</tool_call>"
