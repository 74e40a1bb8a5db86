"""OpenEnv's wire: the JSON messages of an environment's client and server over a WebSocket.

One socket is one session. The client speaks first, and each message has one reply:

========= =========================================================== =============================
type      data of the request                                         type and data of the reply
========= =========================================================== =============================
reset     the task's fields and ``seed``                              ``observation``
step      ``{type: list_tools}``                                      ``observation`` with ``tools``
step      ``{type: call_tool, tool_name, arguments}``                 ``observation``
state     none                                                        ``state``: the ground truth
submitted ``{message}``, see `Environment.submitted`; ours            ``submitted``: empty
mcp       a request in JSON-RPC: ``tools/list`` or ``tools/call``     ``mcp``: its response
close     none                                                        none; the session ends
========= =========================================================== =============================

The protocol does not know ``submitted``. A server that does says so where it lists its tools: ``metadata``
has ``{"hears": ["submitted"]}``. No other server is ever sent one.

Any request may be answered with ``error``, whose data is ``{message, code}``. `wire_observations` has the
data of an observation.

Written after huggingface/OpenEnv, versions 0.3 and 0.10, without its code and without need of its package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.core.episode import Call
from selfverify.core.errors import DataError

INVALID_JSON = "INVALID_JSON"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION_ERROR = "VALIDATION_ERROR"
"""What was asked cannot be done: there is no such task, or the arguments do not fit."""
CAPACITY_REACHED = "CAPACITY_REACHED"
SESSION_ERROR = "SESSION_ERROR"

LIST_TOOLS = {"type": "step", "data": {"type": "list_tools"}}
STATE = {"type": "state"}
CLOSE = {"type": "close"}
SUBMITTED = "submitted"


def encode(message: Mapping[str, Any]) -> str:
    """Return a message as JSON.

    Raises:
        DataError: Something in it is no JSON value.
    """
    try:
        return to_json(message, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, UnicodeError) as error:
        raise DataError(f"the message cannot be written as JSON: {error}") from None


def decode(raw: str | bytes) -> tuple[str, dict[str, Any]]:
    """Return the type and the data of a message, request or reply.

    Raises:
        DataError: It is no message.
    """
    found = decode_object(raw)
    if not isinstance(found.get("type"), str):
        raise DataError("a message is an object with a type")
    data = found.get("data")
    if data is not None and not isinstance(data, dict):
        raise DataError(f"the data of a message of type {found['type'][:40]!r} is no object")
    return found["type"], data or {}


def decode_object(raw: str | bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        DataError: It is none.
    """
    try:
        found = from_json(raw)
    except ValueError as error:
        raise DataError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"no JSON object, but {type(found).__name__}")
    return found


def reset_message(task: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the request for a reset.

    Raises:
        DataError: The task has a field ``seed`` itself.
    """
    if "seed" in task:
        raise DataError("a task must not have a field 'seed': the seed is given beside the task")
    return {"type": "reset", "data": {**task, "seed": seed}}


def read_reset(data: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the task and the seed of a request; a client that sends no seed gets 0.

    Raises:
        DataError: The seed is no number.
    """
    seed = data.get("seed")
    if seed is None:
        seed = 0
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError("seed is no integer")
    return {name: value for name, value in data.items() if name != "seed"}, seed


def call_message(call: Call) -> dict[str, Any]:
    """Return the request that carries out a call."""
    data = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
    return {"type": "step", "data": data}


def read_call(data: Mapping[str, Any]) -> Call | None:
    """Return the call in the data of a step; None where tools are asked for.

    Raises:
        DataError: It is neither.
    """
    match data:
        case {"type": "list_tools"}:
            return None
        case {"type": "call_tool", "tool_name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments)
        case {"type": "call_tool", "tool_name": str(name)} if "arguments" not in data:
            return Call(name)
    raise DataError(
        "the data of a step is {'type': 'call_tool', 'tool_name': NAME, 'arguments': {...}} "
        "or {'type': 'list_tools'}"
    )


def submission_message(message: str) -> dict[str, Any]:
    """Return the request that tells with which message work was handed in."""
    return {"type": SUBMITTED, "data": {"message": message}}


def read_submission(data: Mapping[str, Any]) -> str:
    """Return the message in the data of such a request.

    Raises:
        DataError: There is none.
    """
    message = data.get("message")
    if not isinstance(message, str):
        raise DataError("the data of 'submitted' is {'message': TEXT}")
    return message


def hears_submissions(data: Mapping[str, Any]) -> bool:
    """Whether the data of a reply that lists tools says that its server hears of submissions."""
    match data:
        case {"observation": {"metadata": {"hears": [*heard]}}}:
            return SUBMITTED in heard
    return False


def error_message(message: str, code: str) -> dict[str, Any]:
    """Return the reply to what cannot be answered."""
    return {"type": "error", "data": {"message": message, "code": code}}


def tools_data(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of the reply that lists tools."""
    shown = [mcp_tool(tool, "input_schema") for tool in tools]
    metadata = {"hears": [SUBMITTED]}
    return {"observation": {"tools": shown, "metadata": metadata}, "reward": None, "done": False}


def mcp_tool(tool: Mapping[str, Any], schema: str = "inputSchema") -> dict[str, Any]:
    """Return a tool in OpenAI's form as MCP writes it; ``schema`` names the field of its parameters."""
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        schema: function.get("parameters") or {"type": "object", "properties": {}},
    }


def read_tools(tools: object) -> list[dict[str, Any]]:
    """Return a list of MCP's tools in OpenAI's form.

    Raises:
        DataError: It is no list of tools.
    """
    found = []
    for tool in tools if isinstance(tools, list) else [None]:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise DataError("this is no list of tools")
        schema = tool.get("input_schema", tool.get("inputSchema"))
        function = {
            "name": tool["name"],
            "description": str(tool.get("description") or ""),
            "parameters": schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
        }
        found.append({"type": "function", "function": function})
    return found
