"""The Model Context Protocol over HTTP: one request of JSON-RPC in one POST, answered with JSON.

Two kinds of clients ask here. Those of MCP's streamable HTTP begin with ``initialize`` and name their session
in a header. OpenEnv's begin with ``openenv/session/create`` and name theirs in the parameters; their socket
can join it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import DataError
from selfverify.remote.environments import wire
from selfverify.remote.environments.mcp_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOST,
    PARSE_ERROR,
    answer_rpc,
    rpc_error,
    rpc_result,
)
from selfverify.remote.environments.sessions import NoRoom, SessionTable

SESSION_HEADER = "Mcp-Session-Id"


class McpEndpoint:
    """Answers at ``/mcp``."""

    def __init__(self, table: SessionTable) -> None:
        self.table = table

    async def post(self, request: web.Request) -> web.Response:
        """Answer one request."""
        try:
            data = wire.decode_object(await request.read())
        except DataError as error:
            return _reply(rpc_error({}, PARSE_ERROR, str(error)), 400)
        try:
            if data.get("method") == "initialize":
                session = self.table.open(begins=True, task=fixed_task(request.query))
                return _reply(await answer_rpc(session, data), session=session.id)
            if str(data.get("method")).startswith("openenv/"):
                return _reply(await self._own(data))
        except (NoRoom, EnvironmentLost) as error:
            return _reply(rpc_error(data, LOST, str(error)), 503)
        except DataError as error:
            return _reply(rpc_error(data, INVALID_PARAMS, str(error)), 400)
        header = request.headers.get(SESSION_HEADER)
        found = self.table.find(header or _named(data))
        if found is None:
            text = "there is no such session; initialize makes one"
            return _reply(rpc_error(data, INVALID_REQUEST, text), 404 if header else 400)
        reply = await answer_rpc(found, data)
        if found.lost:
            await self.table.close(found)
        return _reply(reply)

    async def delete(self, request: web.Request) -> web.Response:
        """End a session."""
        session = self.table.find(request.headers.get(SESSION_HEADER, ""))
        if session is None:
            return web.Response(status=404)
        await self.table.close(session)
        return web.Response(status=204)

    async def _own(self, data: dict[str, Any]) -> dict[str, Any]:
        """OpenEnv's methods for sessions."""
        if data["method"] == "openenv/session/create":
            return rpc_result(data, {"session_id": self.table.open().id})
        if data["method"] != "openenv/session/close":
            raise DataError(f"there is no method {data['method'][:60]}")
        session = self.table.find(_named(data))
        if session is None:
            raise DataError("there is no such session")
        await self.table.close(session)
        return rpc_result(data, {"session_id": session.id, "closed": True})


def fixed_task(query: Any) -> tuple[dict[str, Any], int] | None:
    """Return the task and the seed in an address: ``/mcp?task={"id":"alarm"}&seed=3``; None without a task.

    Raises:
        DataError: The task is no JSON object, or the seed no integer.
    """
    if "task" not in query:
        return None
    seed = query.get("seed", "0")
    try:
        return wire.decode_object(query["task"]), int(seed)
    except ValueError:
        raise DataError(f"seed={seed[:40]!r} in the address is no integer") from None


def _named(data: dict[str, Any]) -> str:
    params = data.get("params")
    return str(params.get("session_id")) if isinstance(params, dict) else ""


def _reply(message: dict[str, Any] | None, status: int = 200, session: str = "") -> web.Response:
    headers = {SESSION_HEADER: session} if session else None
    if message is None:
        return web.Response(status=202, headers=headers)
    return web.Response(
        text=wire.encode(message), status=status, content_type="application/json", headers=headers
    )
