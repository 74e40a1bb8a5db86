"""Conversations with tools: verl's ``messages`` and ``tools``, as files for fine-tuning hold them.

``messages`` is a list of ``role`` (system, user, assistant, tool) and ``content``; an assistant's message may
have ``tool_calls``, as OpenAI writes them. ``tools`` is a list of OpenAI's schemas. Both may be JSON in a
text. Parquet gives every object of a list the fields of all of them; what is null is left out here.

Source: verl's ``MultiTurnSFTDataset``, and SmartSnap's release (``data.multiturn.messages_key=messages
data.multiturn.tools_key=tools``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.fields import Images, Place, Record, Row, filled, first, optional, shown

LONGEST_NAME = 500
LONGEST_MESSAGE = 1_000_000
"""Characters of a message; a longer one means that the file is broken."""
ROLES = ("system", "user", "assistant", "tool")
TAUGHT = ("all", "last")


def is_conversation(record: Record) -> bool:
    """Whether a record is a conversation, and no question in other columns."""
    return filled(record.get("messages")) and first(record, "question", "problem", "answer") is None


def convert_conversation(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`.

    A row has ``messages``, each with ``role``, ``content`` and, of an assistant, ``calls`` (name and
    arguments), and ``tools``. ``taught`` says whether all the assistant's messages are to be learnt or the
    last one only (our own column; verl's files have none, and all are learnt).
    """
    messages = [
        _message(message, number)
        for number, message in enumerate(_listed(record.get("messages"), "messages"), 1)
    ]
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError("its messages have none of an assistant")
    if messages[0]["role"] not in ("system", "user"):
        raise DataError(f"message 1: its role is {messages[0]['role']}: a user has to ask first")
    _check_order(messages)
    if filled(record.get("images")):
        raise DataError("it shows images, and conversations are read as text only")
    taught = first(record, "taught") or "all"
    if taught not in TAUGHT:
        raise DataError(f"its taught is {shown(taught)}, neither all nor last")
    tools = _listed(record.get("tools"), "tools") if filled(record.get("tools")) else []
    category = optional(record, ("category", "app"), LONGEST_NAME)
    row: Row = {
        "id": optional(record, ("id", "problem"), LONGEST_NAME),
        "images": [],
        "source": optional(record, ("source", "data_source"), LONGEST_NAME),
        "category": category,
        "categories": {} if category is None else {"app": [category]},
        "messages": messages,
        "tools": [_tool(tool, number) for number, tool in enumerate(tools, start=1)],
        "taught": taught,
    }
    return [row]


def _check_order(messages: Sequence[dict[str, Any]]) -> None:
    """See that between two messages of the assistant either a user speaks or tools do."""
    said = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for before, after in itertools.pairwise(said):
        between = [message["role"] for message in messages[before + 1 : after]]
        if len(set(between)) != 1 or "system" in between:
            who = " and ".join(dict.fromkeys(between)) or "nobody"
            raise DataError(
                f"message {after + 1}: before it the assistant has spoken, then {who}; it has to be a user "
                "or tools"
            )


def _message(message: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise DataError(f"{where} is {shown(message)}, not an object")
    role = message.get("role")
    if role not in ROLES:
        raise DataError(f"{where}: its role is {shown(role)}, none of {', '.join(ROLES)}")
    calls = message.get("tool_calls", message.get("calls"))
    found: dict[str, Any] = {"role": role, "content": _content(message.get("content"), where)}
    if role == "assistant":
        listed = [] if calls is None else _listed(calls, f"{where}: tool_calls")
        found["calls"] = [_call(call, f"{where}, call {n}") for n, call in enumerate(listed, start=1)]
    elif filled(calls) and calls != []:
        raise DataError(f"{where}: a message of role {role} calls tools")
    if not found["content"] and not found.get("calls") and role != "tool":
        raise DataError(f"{where}: it is empty")
    return found


def _content(content: Any, where: str) -> str:
    """A message's text, which may stand in parts."""
    if content is None:
        return ""
    if isinstance(content, list):
        for part in content:
            if (
                not isinstance(part, dict)
                or part.get("type") != "text"
                or not isinstance(part.get("text"), str)
            ):
                raise DataError(f"{where}: its content has {shown(part)}, and only text is read")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise DataError(f"{where}: its content is {shown(content)}, not a text")
    if len(content) > LONGEST_MESSAGE:
        raise DataError(
            f"{where}: its content has {len(content):,} characters, more than {LONGEST_MESSAGE:,}"
        )
    return content


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f"{where} is {shown(call)}: it needs the name of a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _json(arguments or "{}", f"{where}: its arguments")
    arguments = {} if arguments is None else without_nulls(arguments)
    if not isinstance(arguments, dict):
        raise DataError(f"{where}: its arguments are {shown(arguments)}, not an object")
    return {"name": function["name"], "arguments": arguments}


def _tool(tool: Any, number: int) -> dict[str, Any]:
    tool = without_nulls(tool)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(f"tool {number} is {shown(tool)}: it needs a function with a name")
    return dict(tool)


def _listed(value: Any, name: str) -> list[Any]:
    if isinstance(value, str):
        value = _json(value, f"its {name}")
    if not isinstance(value, list) or (not value and name == "messages"):
        raise DataError(f"its {name} is {shown(value)}, not a list")
    return value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} are no JSON ({error})") from None


def without_nulls(value: Any) -> Any:
    """A JSON value without the fields that are null, at every depth."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
