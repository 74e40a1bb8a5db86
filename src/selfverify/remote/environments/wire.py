"""OpenEnv's wire: the JSON messages of an environment's client and server over a WebSocket.

One socket is one session. The client speaks first, and each message has one reply:

======== ============================================================ =============================
type     data of the request                                          type and data of the reply
======== ============================================================ =============================
reset    the task's fields and ``seed``                               ``observation``
step     ``{type: list_tools}``                                       ``observation`` with ``tools``
step     ``{type: call_tool, tool_name, arguments}``                  ``observation``
state    none                                                         ``state``: the ground truth
mcp      a request in JSON-RPC: ``tools/list`` or ``tools/call``      ``mcp``: its response
close    none                                                         none; the session ends
======== ============================================================ =============================

Any request may be answered with ``error``, whose data is ``{message, code}``. An observation is
``{observation: {tool_name, result: {content, is_error}, error, metadata}, reward, done, metadata}``. What it
shows stands in ``content`` (`content.to_blocks`). The protocol has no field for the round, for ``truncated``
and for ``info``; they stand in ``metadata``, which the protocol leaves to environments. There ``done`` is the
task's own end. The protocol's ``done`` is also true after ``truncated``, since its clients go on until it is.

Written after huggingface/OpenEnv, versions 0.3 and 0.10, without its code and without need of its package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL.Image import Image
from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.core.environment import Call, Observation
from selfverify.core.errors import DataError
from selfverify.remote.environments.content import ContentLimits, from_blocks, from_data_urls, to_blocks

INVALID_JSON = "INVALID_JSON"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION_ERROR = "VALIDATION_ERROR"
"""What was asked cannot be done: there is no such task, or the arguments do not fit."""
EXECUTION_ERROR = "EXECUTION_ERROR"
CAPACITY_REACHED = "CAPACITY_REACHED"
SESSION_ERROR = "SESSION_ERROR"

LIST_TOOLS = {"type": "step", "data": {"type": "list_tools"}}
STATE = {"type": "state"}
CLOSE = {"type": "close"}

_LOST = frozenset({"timeout", "transport_error"})
"""Types of a tool's error after which nothing is known of the environment."""


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


def error_message(message: str, code: str) -> dict[str, Any]:
    """Return the reply to what cannot be answered."""
    return {"type": "error", "data": {"message": message, "code": code}}


def tools_data(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of the reply that lists tools."""
    shown = [mcp_tool(tool, "input_schema") for tool in tools]
    return {"observation": {"tools": shown, "metadata": {}}, "reward": None, "done": False}


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


def observation_data(observation: Observation, tool: str = "") -> dict[str, Any]:
    """Return the data of a reply that shows an observation.

    Args:
        observation: What is shown.
        tool: The tool that was called; empty after a reset.

    Raises:
        DataError: The reward is no finite number.
    """
    reward = observation.reward
    if reward is not None and not math.isfinite(reward):
        raise DataError(f"the environment's reward is {reward}")
    ended = {"done": observation.done, "truncated": observation.truncated}
    metadata = {"round": observation.round, **ended, "info": observation.info}
    error = {"error_type": "execution_error", "message": observation.error} if observation.error else None
    shown = {
        **({"tool_name": tool} if tool else {}),
        "result": {
            "content": to_blocks(observation.text, observation.images),
            "is_error": bool(observation.error),
        },
        "error": error,
        "metadata": metadata,
    }
    done = observation.done or observation.truncated
    return {"observation": shown, "reward": reward, "done": done, "metadata": metadata}


def read_observation(data: Mapping[str, Any], due: int, limits: ContentLimits) -> Observation:
    """Return the observation of a reply, whoever has written it.

    Args:
        data: The reply's data.
        due: The round that the observation must have, or the one before where the call was refused and not
            counted. A server that counts otherwise has lost its session.
        limits: What is accepted.

    Raises:
        DataError: It is no observation, or none of the round that is due.
    """
    shown = data.get("observation")
    if not isinstance(shown, dict):
        raise DataError("there is no observation")
    metadata = data.get("metadata") or shown.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise DataError("metadata is no object")
    text, images = _shown(shown, limits)
    error = _error(shown)
    result = shown.get("result")
    if not error and isinstance(result, dict) and (result.get("is_error") or result.get("isError")):
        text, error = "", text or "the tool has failed"
    told = metadata.get("round", due)
    if told != due and not (error and told == due - 1):
        raise DataError(f"the observation is of round {str(told)[:20]}, and round {due} is due")
    foreign = {name: value for name, value in metadata.items() if name not in ("round", "done", "truncated")}
    info = metadata.get("info", foreign)
    return Observation(
        told,
        text,
        images,
        error,
        done=_flag(metadata.get("done", data.get("done")), "done"),
        truncated=_flag(metadata.get("truncated"), "truncated"),
        reward=_reward(data.get("reward")),
        info=info if isinstance(info, dict) else {"info": info},
    )


def _shown(shown: Mapping[str, Any], limits: ContentLimits) -> tuple[str, list[Image]]:
    """The text and the images of an observation; what is in no blocks becomes JSON."""
    other = ("tool_name", "error", "metadata", "done", "reward")
    fields = {name: value for name, value in shown.items() if name not in other}
    result = fields.get("result") if "result" in fields else fields
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        return from_blocks(result["content"], limits)
    images: list[Image] = []
    if isinstance(result, dict):
        result, images = from_data_urls(result, limits)
    if isinstance(result, str):
        return result, images
    return ("" if result is None or result == {} else to_json(result).decode()), images


def _error(shown: Mapping[str, Any]) -> str:
    match shown.get("error"):
        case None | "":
            return ""
        case {"error_type": str(kind), "message": message} if kind in _LOST:
            raise DataError(f"the tool's error is {kind}: {str(message)[:200]}")
        case {"message": message}:
            return str(message) or "the tool has failed"
        case other:
            return str(other)


def _flag(value: object, name: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{name} is neither true nor false")
    return bool(value)


def _reward(value: object) -> float | None:
    if value is None:
        return None
    try:
        reward = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise DataError(f"the reward is no finite number: {str(value)[:40]}")
    return reward
