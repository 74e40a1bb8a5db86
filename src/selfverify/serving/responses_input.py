"""Requests of OpenAI's Responses API as the chat completion requests that they stand for.

The fields, items and parts are those of OpenAI's reference of ``POST /v1/responses``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from selfverify.remote.usage import MOST_TOKENS
from selfverify.serving.api_errors import ApiError, invalid_value

_CALLED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include: [message.output_text.logprobs]",
    "functions": "tools",
    "function_call": "tool_choice",
    "n": "best_of.n",
}
"""Fields of chat completions, and what they are called here."""

_NOT_KEPT = {
    "previous_response_id": "responses are not kept here; send the whole conversation as `input`",
    "conversation": "conversations are not kept here; send the whole conversation as `input`",
    "prompt": "no prompts are kept here; send `instructions` and `input`",
    "background": "responses are not kept here, so none is made in the background",
    "store": "responses are not kept here; send false, or leave it out",
}
"""Fields that need what this gateway does not keep."""

_ADDED = {
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
}
"""What `include` may ask for. There are log-probabilities only; the others belong to what is never here."""

_MESSAGES = re.compile(r"\bmessages\.([0-9]+)")


class ResponsesRequest(BaseModel):
    """The fields of a request that the gateway reads. Others are those of chat completions or of a server."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, max_length=512)
    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    tools: list[dict[str, Any]] | None = Field(None, max_length=1024)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    store: bool | None = None


@dataclass(frozen=True, slots=True)
class AsChat:
    """A request as one of chat completions.

    Args:
        body: Its fields.
        places: Where each message stands in the request, such as ``input.2``.
    """

    body: dict[str, Any]
    places: list[str]

    def told(self, error: ApiError) -> ApiError:
        """Return an error in the names of the request that the client sent."""

        def place(found: re.Match[str]) -> str:
            number = int(found[1])
            return self.places[number] if number < len(self.places) else found[0]

        text, param = _MESSAGES.sub(place, str(error)), error.param
        param = None if param is None else _MESSAGES.sub(place, param)
        if param == "messages":
            text, param = text.replace("messages", "input"), "input"
        if param in _CALLED:
            text, param = text.replace(param, _CALLED[param], 1), _CALLED[param]
        return ApiError(error.status, text, error.code, param, error.retry_after)


def as_chat(asked: ResponsesRequest) -> AsChat:
    """Return a request as one of chat completions.

    Raises:
        ApiError: It needs what is not kept here, or has fields, items or parts that are not understood.
    """
    _refuse(asked)
    messages, places = _messages(asked)
    body: dict[str, Any] = dict(asked.model_extra or {})
    body |= {"model": asked.model, "messages": messages, "stream": bool(asked.stream)}
    choice = _tool_choice(asked.tool_choice)
    text, reasoning = asked.text or {}, asked.reasoning or {}
    wants_logprobs = "message.output_text.logprobs" in (asked.include or ()) or bool(asked.top_logprobs)
    fields = {
        "max_completion_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "tools": [_tool(tool, f"tools.{i}") for i, tool in enumerate(asked.tools or ())] or None,
        "tool_choice": choice if asked.tools else None,
        "parallel_tool_calls": asked.parallel_tool_calls if asked.tools else None,
        "response_format": _format(text.get("format")),
        "verbosity": text.get("verbosity"),
        "reasoning_effort": reasoning.get("effort"),
        "logprobs": wants_logprobs or None,
        "top_logprobs": asked.top_logprobs,
    }
    return AsChat(body | {name: value for name, value in fields.items() if value is not None}, places)


def _refuse(asked: ResponsesRequest) -> None:
    for name, text in _NOT_KEPT.items():
        value = getattr(asked, name)
        if value is not None and value is not False:
            raise ApiError(400, f"{name}: {text}", "unsupported_parameter", name)
    for name in asked.model_extra or ():
        if name in _CALLED:
            text = f"{name}: in the Responses API this is called {_CALLED[name]}"
            raise ApiError(400, text, "unknown_parameter", name)
    if asked.truncation not in (None, "disabled"):
        text = "truncation: nothing is left out of a conversation here; only `disabled` is possible"
        raise ApiError(400, text, "unsupported_parameter", "truncation")
    for i, name in enumerate(asked.include or ()):
        if name not in _ADDED:
            raise invalid_value(f"include.{i}", f"there is no {name[:100]!r} that could be included")


def _messages(asked: ResponsesRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages of a conversation, and where each stands in the request."""
    messages, places = list[dict[str, Any]](), list[str]()
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
        places.append("instructions")
    if isinstance(asked.input, str) and asked.input:
        return [*messages, {"role": "user", "content": asked.input}], [*places, "input"]
    if not isinstance(asked.input, list) or not asked.input:
        raise invalid_value("input", "a text or a list of items is needed")
    for i, item in enumerate(asked.input):
        place = f"input.{i}"
        if not isinstance(item, Mapping):
            raise invalid_value(place, "an item is an object")
        call = _call(item, place)
        if call is not None:
            # Calls belong to the message before them, as chat completions have it.
            if not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
                places.append(place)
            messages[-1].setdefault("tool_calls", []).append(call)
            continue
        message = _message(item, place)
        if message is not None:
            messages.append(message)
            places.append(place)
    if not messages:
        raise invalid_value("input", "there is no message in it")
    return messages, places


def _call(item: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """Return an item as a call of a tool, if it is one."""
    kind = item.get("type")
    if kind == "function_call":
        inner = {name: _text(item, name, place) for name in ("name", "arguments")}
        return {"id": _text(item, "call_id", place), "type": "function", "function": inner}
    if kind == "custom_tool_call":
        inner = {name: _text(item, name, place) for name in ("name", "input")}
        return {"id": _text(item, "call_id", place), "type": "custom", "custom": inner}
    return None


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """Return an item as a message; None for what models wrote for themselves."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return None
    if kind == "item_reference":
        text = f"{place}: items are not kept here; send the item itself"
        raise ApiError(400, text, "unsupported_parameter", place)
    if kind in ("function_call_output", "custom_tool_call_output"):
        content = _content(item.get("output"), f"{place}.output")
        return {"role": "tool", "tool_call_id": _text(item, "call_id", place), "content": content}
    if kind != "message":
        raise invalid_value(f"{place}.type", f"items of type {kind!r} are not understood here")
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid_value(f"{place}.role", f"{role!r} is none of user, assistant, system and developer")
    content = _content(item.get("content"), f"{place}.content")
    if role != "assistant" or isinstance(content, str):
        return {"role": role, "content": content}
    said: dict[str, Any] = {"role": role, "content": "".join(part.get("text", "") for part in content)}
    refusals = [part["refusal"] for part in content if part["type"] == "refusal"]
    return said | ({"refusal": "".join(refusals), "content": said["content"] or None} if refusals else {})


def _content(given: Any, place: str) -> Any:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid_value(place, "a text or a list of parts is needed")
    return [_part(part, f"{place}.{i}") for i, part in enumerate(given)]


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": _text(part, "text", place)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": _text(part, "refusal", place)}
    if kind == "input_image" and part.get("image_url") is not None:
        detail = {} if part.get("detail") is None else {"detail": part["detail"]}
        return {"type": "image_url", "image_url": {"url": _text(part, "image_url", place)} | detail}
    if kind == "input_file" and part.get("file_data") is not None:
        file = {name: part[name] for name in ("file_data", "filename") if part.get(name) is not None}
        return {"type": "file", "file": file}
    if kind in ("input_image", "input_file"):
        text = f"{place}: files are not kept or fetched here; send the data itself (data:TYPE;base64,...)"
        raise ApiError(400, text, "unsupported_parameter", place)
    raise invalid_value(place, f"a part of type {kind!r} is not understood here")


def _text(found: Mapping[str, Any], name: str, place: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise invalid_value(f"{place}.{name}", "a text is needed")
    return value


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "function":
        names = ("name", "description", "parameters", "strict")
        _text(tool, "name", place)
        return {"type": kind, kind: {n: tool[n] for n in names if tool.get(n) is not None}}
    if kind == "custom":
        _text(tool, "name", place)
        inner = {n: tool[n] for n in ("name", "description", "format") if tool.get(n) is not None}
        grammar = inner.get("format")
        if isinstance(grammar, Mapping) and grammar.get("type") == "grammar":
            rest = {name: value for name, value in grammar.items() if name != "type"}
            inner["format"] = {"type": "grammar", "grammar": rest}
        return {"type": kind, kind: inner}
    text = f"{place}.type: a tool of type {kind!r} does not run here; function and custom ones are passed on"
    raise ApiError(400, text, "unsupported_parameter", f"{place}.type")


def _tool_choice(given: Any) -> Any:
    if given is None or isinstance(given, str):
        return given
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind in ("function", "custom"):
        return {"type": kind, kind: {"name": _text(given, "name", "tool_choice")}}
    raise invalid_value("tool_choice.type", f"{kind!r} is neither function nor custom")


def _format(given: Any) -> dict[str, Any] | None:
    """Return what ``text.format`` is as a ``response_format``."""
    if given is None or given == {"type": "text"}:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "json_object":
        return {"type": kind}
    if kind == "json_schema":
        names = ("name", "schema", "strict", "description")
        return {"type": kind, kind: {name: given[name] for name in names if given.get(name) is not None}}
    raise invalid_value("text.format.type", f"{kind!r} is none of text, json_object and json_schema")
