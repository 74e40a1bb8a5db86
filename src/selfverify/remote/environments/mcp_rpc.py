"""An environment's tools as a server of the Model Context Protocol: its requests, whatever carries them.

A client of that protocol knows tools only: it lists them and calls them. An environment needs a task first.
So a session whose client has no other way gets one more tool, ``begin``, which resets the environment and
shows where it starts. What the protocol has no field for stands in a result's ``_meta``:
``selfverify/round``, ``selfverify/reward``, ``selfverify/done`` and ``selfverify/truncated``.

Source: Model Context Protocol, versions 2024-11-05 to 2025-11-25, base protocol and tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import DataError, __version__
from selfverify.remote.environments.sessions import Session
from selfverify.remote.environments.wire import mcp_tool, read_reset
from selfverify.remote.environments.wire_observations import observation_data

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions of the protocol that are spoken, the newest last."""
BEGIN = "begin"

PARSE_ERROR, INVALID_REQUEST, NOT_FOUND, INVALID_PARAMS, LOST = -32700, -32600, -32601, -32602, -32000
"""Codes of JSON-RPC; the last is for lost sessions and servers without room."""


async def answer_rpc(session: Session, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Answer one request of JSON-RPC; None for a notification, which has no answer."""
    if "id" not in request:
        return None
    method, params = request.get("method"), request.get("params") or {}
    if request.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
        return rpc_error(
            request, INVALID_REQUEST, "a request has jsonrpc '2.0', a method, and params, an object"
        )
    try:
        match method:
            case "initialize":
                return rpc_result(request, _welcome(session, params))
            case "ping":
                return rpc_result(request, {})
            case "tools/list":
                return rpc_result(request, {"tools": _tools(session)})
            case "tools/call":
                return rpc_result(request, await _call(session, params))
    except DataError as error:
        return rpc_error(request, INVALID_PARAMS, str(error))
    except EnvironmentLost as error:
        return rpc_error(request, LOST, str(error))
    return rpc_error(request, NOT_FOUND, f"there is no method {method[:60]}")


def rpc_result(request: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


def rpc_error(request: Mapping[str, Any], code: int, message: str) -> dict[str, Any]:
    """Return the answer to a request that failed."""
    return {"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": code, "message": message}}


def _welcome(session: Session, params: Mapping[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    found: dict[str, Any] = {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "selfverify", "version": __version__},
    }
    if session.begins:
        found["instructions"] = f"Call {BEGIN} first: it sets the task up and shows where it starts."
    return found


def _tools(session: Session) -> list[dict[str, Any]]:
    tools = [mcp_tool(tool) for tool in session.environment.tools]
    if not session.begins:
        return tools
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if session.task is None:
        schema["properties"] = {
            "task": {"type": "object", "description": "The task, in the environment's own fields."},
            "seed": {"type": "integer", "description": "Decides whatever is random."},
        }
    told = "Set the task up and show where it starts. It is called once, before all others."
    return [{"name": BEGIN, "description": told, "inputSchema": schema}, *tools]


async def _call(session: Session, params: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise DataError("a call has a name, and arguments, an object")
    if name == BEGIN and session.begins:
        if session.begun:
            return _refused(f"the task has begun; {BEGIN} is called once")
        task, seed = session.task or _task(arguments)
        shown = await session.reset(task, seed)
    elif not session.begun and session.begins:
        return _refused(f"there is no task yet: call {BEGIN} first")
    else:
        shown = await session.act(Call(name, arguments))
    return await session.written(shown, _result)


def _task(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    task = arguments.get("task") or {}
    if not isinstance(task, dict):
        raise DataError("task is no object")
    return task, read_reset({"seed": arguments.get("seed")})[1]


def _result(shown: StepResult) -> dict[str, Any]:
    """An observation as the result of a tool; an error stands among the texts, where clients look for it."""
    data = observation_data(shown)
    content = data["observation"]["result"]["content"]
    if shown.error:
        content = [{"type": "text", "text": shown.error}, *content]
    told = {
        "round": shown.round,
        "reward": shown.reward,
        "done": shown.done,
        "truncated": shown.truncated,
    }
    meta = {f"selfverify/{name}": value for name, value in told.items()}
    return {"content": content, "isError": bool(shown.error), "_meta": meta}


def _refused(message: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": message}], "isError": True}
