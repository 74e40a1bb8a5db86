"""The sessions of a server of environments, and what their clients ask, over `connectors.openenv` and MCP.

Source: Model Context Protocol, versions 2024-11-05 to 2025-11-25, base protocol and tools.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from selfverify.connectors import openenv as wire
from selfverify.connectors.content import ContentLimits
from selfverify.connectors.pool import Factory, close_in_time
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError, SelfVerifyError, __version__, needs

with needs("servers need more", "serve"):
    from aiohttp import WSMsgType, web


logger = logging.getLogger("selfverify.environments")

T = TypeVar("T")


class NoRoom(SelfVerifyError):
    """A server has as many sessions as it may have."""


CALLS = ContentLimits(message_bytes=4 * 2**20)
"""As much as calls of agents need."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a server.

    Args:
        sessions: The most sessions at once, of each environment.
        idle_s: Seconds without a request after which a session is closed.
        busy_s: Seconds that one request may take. Then its session is lost.
        close_s: Seconds that closing an environment may take. Then it is left behind, and the log says so.
        content: Limits of the content that a client may send.
    """

    sessions: int = 64
    idle_s: float = 600.0
    busy_s: float = 600.0
    close_s: float = 30.0
    content: ContentLimits = CALLS


@dataclass(eq=False)
class Session:
    """One client's environment. Requests wait for each other.

    Args:
        environment: The environment.
        limits: How long a request may take.
        begins: Whether the client begins its task with a tool (`BEGIN`), having no other way.
        fixed: The arguments of `BEGIN` that are not the client's to choose.
    """

    environment: Environment
    limits: SessionLimits
    begins: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    socket: web.WebSocketResponse | None = field(default=None, init=False)
    """The socket that speaks for it."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24), init=False)
    used: float = field(default_factory=time.monotonic, init=False)
    begun: bool = field(default=False, init=False)
    lost: str = field(default="", init=False)
    """Why nothing can be asked any more."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held by the request that is on its way."""

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self.begun = False
        shown = await self._do(lambda: self.environment.reset(task, seed), "reset")
        self.begun = True
        return shown

    async def act(self, call: Call) -> StepResult:
        """Carry out a call.

        Raises:
            DataError: The session has not been reset to a task yet.
        """
        return await self._do(lambda: self.environment.step(call), call.name, in_task=True)

    async def submitted(self, message: str) -> None:
        """Pass the agent's last message on.

        Raises:
            DataError: The session has not been reset to a task yet.
        """
        await self._do(lambda: self.environment.submitted(message), "submitted", in_task=True)

    async def state(self) -> dict[str, Any] | None:
        return await self._do(self.environment.state, "state")

    @property
    def silent(self) -> bool:
        """Whether nothing was asked for too long."""
        return not self.turn.locked() and time.monotonic() - self.used >= self.limits.idle_s

    async def written(self, observation: StepResult, write: Callable[[StepResult], T]) -> T:
        """Return an observation as it is sent, images on another thread.

        Raises:
            EnvironmentLost: It cannot be sent, which is the environment's fault.
        """
        try:
            return await asyncio.to_thread(write, observation) if observation.images else write(observation)
        except Exception as error:
            self.lost = f"what the environment shows cannot be sent: {type(error).__name__}: {error}"
            raise EnvironmentLost(self.lost) from None

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]], what: str, in_task: bool = False) -> T:
        """Carry out one request after the requests before it, ``in_task`` only after a reset.

        Raises:
            EnvironmentLost: The environment is lost, has raised what it must not raise, or takes too long.
            DataError: As the environment.
        """
        async with self.turn:
            if self.lost:
                raise EnvironmentLost(self.lost)
            if in_task and not self.begun:
                raise DataError("there is no task yet: reset comes before the first call")
            try:
                async with asyncio.timeout(self.limits.busy_s):
                    return await work()
            except DataError:
                raise
            except TimeoutError:
                self.lost = f"{what[:40]} took longer than {self.limits.busy_s:g} s"
            except EnvironmentLost as error:
                self.lost = str(error)
            except asyncio.CancelledError:
                self.lost = f"{what[:40]} was broken off"
                raise
            except Exception as error:
                logger.exception("the environment has raised what it must not raise")
                self.lost = (
                    f"the environment has failed with {type(error).__name__}; the server's log says more"
                )
            finally:
                self.used = time.monotonic()
            raise EnvironmentLost(self.lost)


VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions of the protocol that are spoken, the newest last."""
BEGIN = "begin"

PARSE_ERROR, INVALID_REQUEST, NOT_FOUND, INVALID_PARAMS, LOST = -32700, -32600, -32601, -32602, -32000
"""Codes of JSON-RPC; the last is for lost sessions and servers without room."""


def rpc_error(request: Mapping[str, Any], code: int, message: str) -> dict[str, Any]:
    """Return the answer to a request of JSON-RPC that failed."""
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
    tools = [wire.mcp_tool(tool) for tool in session.environment.tools]
    if not session.begins:
        return tools
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if "task" not in session.fixed:
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
    begins = session.begins and name == BEGIN
    if session.begins and begins == session.begun:
        told = f"the task has begun; {BEGIN} is called once"
        told = told if begins else f"there is no task yet: call {BEGIN} first"
        return {"content": [{"type": "text", "text": told}], "isError": True}
    if not begins:
        return await session.written(await session.act(Call(name, arguments)), _result)
    arguments = {**arguments, **session.fixed}
    task, (_, seed) = arguments.get("task") or {}, wire.read_reset(arguments)
    if not isinstance(task, dict):
        raise DataError("task is no object")
    return await session.written(await session.reset(task, seed), _result)


def _result(shown: StepResult) -> dict[str, Any]:
    """An observation as the result of a tool; an error stands among the texts, where clients look for it."""
    data = wire.observation_data(shown)
    content = data["observation"]["result"]["content"]
    if shown.error:
        content = [{"type": "text", "text": shown.error}, *content]
    meta = {f"selfverify/{name}": getattr(shown, name) for name in ("round", "reward", "done", "truncated")}
    return {"content": content, "isError": bool(shown.error), "_meta": meta}


def _shown(tool: str, observation: StepResult) -> str:
    return wire.encode({"type": "observation", "data": wire.observation_data(observation, tool)})


class Endpoint:
    """The sessions of one environment, bounded in number, and what their clients ask.

    At ``/ws`` it answers OpenEnv's wire. A socket has a session, which ends with it, or speaks for one of
    those below, which goes on (``/ws?session_id=ID``; one socket at a time). No pings are sent: an
    environment that keeps its process busy could not answer them in time. A client that has gone without a
    word is noticed when it is idle for too long.

    At ``/mcp`` it answers one request of JSON-RPC in one POST with JSON. Clients of MCP begin with
    ``initialize`` and name their session in a header; those of OpenEnv begin with ``openenv/session/create``
    and name it in ``params``. Whoever knows a session's id, which cannot be guessed, may ask it.

    Args:
        name: The environment's name, for messages.
        factory: Makes an environment, at once; what takes long belongs into its `Environment.reset`.
        limits: The limits.
    """

    def __init__(self, name: str, factory: Factory, limits: SessionLimits) -> None:
        self.name, self.factory, self.limits = name, factory, limits
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, begins: bool = False, fixed: Mapping[str, Any] | None = None) -> Session:
        """Make a session.

        Raises:
            NoRoom: There are as many as may be.
            EnvironmentLost: No environment can be made.
        """
        if len(self._open) >= self.limits.sessions:
            raise NoRoom(f"{self.name}: all {self.limits.sessions} sessions are in use")
        try:
            made = self.factory()
        except Exception as error:
            logger.exception("%s: no environment can be made", self.name)
            raise EnvironmentLost(
                f"{self.name}: no environment can be made: {type(error).__name__}; the server's log says more"
            ) from None
        session = Session(made, self.limits, begins, fixed or {})
        self._open[session.id] = session
        return session

    async def close(self, *sessions: Session) -> None:
        """Close sessions, or without any all. Never raises; what does not close in time is left behind."""
        closing = [session for session in sessions or self._open.values() if session.id in self._open]
        for session in closing:
            del self._open[session.id]
            session.lost = session.lost or "the session is closed"
            if session.socket is not None:
                await _say(session.socket, session.lost, wire.SESSION_ERROR)
                await session.socket.close()
        limit_s = self.limits.close_s
        await asyncio.gather(*(close_in_time(each.environment, self.name, limit_s) for each in closing))

    async def sweep(self) -> None:
        """Close sessions that have been silent for too long."""
        idle = [session for session in self._open.values() if session.silent]
        for session in idle:
            session.lost = session.lost or f"nothing was asked for {self.limits.idle_s:g} s"
        if idle:
            await self.close(*idle)

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one socket until its end."""
        most, id = self.limits.content.message_bytes, request.query.get("session_id")
        socket = web.WebSocketResponse(max_msg_size=most, compress=False, timeout=1.0)
        await socket.prepare(request)
        try:
            session = self.open() if id is None else self._named(id)
            if session.begins or session.socket is not None:
                raise DataError("this session has a socket, or is none that takes one")
            session.socket = socket
            try:
                await self._converse(socket, session)
            finally:
                session.socket, session.used = None, time.monotonic()
                if id is None or session.lost:
                    await asyncio.shield(self.close(session))
        except (NoRoom, EnvironmentLost, DataError) as error:
            code = wire.CAPACITY_REACHED if isinstance(error, NoRoom) else wire.SESSION_ERROR
            await _say(socket, str(error), code)
        finally:
            await socket.close()
        return socket

    async def stop(self) -> None:
        """Close all sockets, whose sessions then end."""
        sockets = [session.socket for session in self._open.values() if session.socket is not None]
        await asyncio.gather(*(socket.close(code=1001) for socket in sockets))

    async def _converse(self, socket: web.WebSocketResponse, session: Session) -> None:
        """Answer message by message. A client that goes while it is answered breaks that off."""
        receiving = asyncio.ensure_future(socket.receive())
        answering: asyncio.Future[str | None] | None = None
        try:
            while True:
                message, session.used = await receiving, time.monotonic()
                if message.type != WSMsgType.TEXT:
                    return
                receiving = asyncio.ensure_future(socket.receive())
                answering = asyncio.ensure_future(self.answer(session, message.data))
                await asyncio.wait({receiving, answering}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    return  # it has gone, or speaks before it was answered
                reply = answering.result()
                if reply is None:
                    return
                with suppress(ConnectionError):
                    await socket.send_str(reply)
                if session.lost:
                    return
        finally:
            for task in (receiving, answering):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.wait({task})

    async def answer(self, session: Session, raw: str | bytes) -> str | None:
        """Return the reply to a message of OpenEnv's wire; None after ``close``.

        After a reply to a lost environment `Session.lost` says why, and the session ends.
        """
        try:
            kind, data = wire.decode(raw)
        except DataError as error:
            return wire.error_message(str(error), wire.INVALID_JSON)
        try:
            match kind:
                case "close":
                    return None
                case "reset":
                    shown = await session.reset(*wire.read_reset(data))
                    return await session.written(shown, partial(_shown, ""))
                case "step":
                    call = wire.read_call(data)
                    if call is None:
                        tools = wire.tools_data(session.environment.tools)
                        return wire.encode({"type": "observation", "data": tools})
                    return await session.written(await session.act(call), partial(_shown, call.name))
                case "state":
                    return wire.encode({"type": "state", "data": await session.state() or {}})
                case wire.SUBMITTED:
                    await session.submitted(wire.read_submission(data))
                    return wire.encode({"type": wire.SUBMITTED, "data": {}})
                case "mcp":
                    reply, _ = await self.answer_rpc(data, session)
                    return wire.encode({"type": "mcp", "data": reply or {}})
        except DataError as error:
            return wire.error_message(str(error), wire.VALIDATION_ERROR)
        except EnvironmentLost as error:
            return wire.error_message(str(error), wire.SESSION_ERROR)
        return wire.error_message(f"there is no message of type {kind[:40]!r}", wire.UNKNOWN_TYPE)

    async def post(self, request: web.Request) -> web.Response:
        """Answer one request of JSON-RPC over HTTP."""
        name = request.headers.get(SESSION_HEADER)
        own = self._open.get(name or "")
        try:
            asked = wire.decode_object(await request.read())
        except DataError as error:
            return _sent(rpc_error({}, PARSE_ERROR, str(error)), 400)
        if own is not None:
            own.used = time.monotonic()
        elif name:
            told = "there is no such session; initialize makes one"
            return _sent(rpc_error(asked, INVALID_REQUEST, told), 404)
        reply, session = await self.answer_rpc(asked, own, request.query)
        if own is not None and own.lost:
            await self.close(own)
        headers = {SESSION_HEADER: session.id} if session is not None and session.begins else {}
        return _sent(reply, 400 if reply and reply["id"] is None and "error" in reply else 200, headers)

    async def answer_rpc(
        self, request: Mapping[str, Any], own: Session | None, query: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any] | None, Session | None]:
        """Answer one request of JSON-RPC.

        A client of the Model Context Protocol knows tools only: it lists them and calls them. An environment
        needs a task first. So a session that begins with ``initialize`` gets one more tool, `BEGIN`, which
        resets the environment and shows where it starts. Values for which the protocol has no field stand in
        a result's ``_meta``: ``selfverify/round``, ``selfverify/reward``, ``selfverify/done`` and
        ``selfverify/truncated``.

        Args:
            request: The request.
            own: The session of the socket, or of the header, that asks.
            query: The address's: ``/mcp?task={"id":"alarm"}&seed=3`` fixes the task and the seed.

        Returns:
            The answer, None to a notification; and the session that was asked.
        """
        method, params, id = request.get("method"), request.get("params") or {}, request.get("id", [])
        if "id" not in request and str(method).startswith("notifications/"):
            return None, own
        if (
            request.get("jsonrpc") != "2.0"
            or not (isinstance(method, str) and isinstance(params, dict))
            or not (id is None or type(id) in (str, int, float))
        ):
            told = "a request has jsonrpc '2.0', a method, an id, and params, an object; it is sent by itself"
            return rpc_error({}, INVALID_REQUEST, told), own
        session = own
        try:
            match method:
                case "initialize":
                    session = session or self.open(True, _fixed(query or {}))
                    result = _welcome(session, params)
                case "openenv/session/create":
                    session = session or self.open()
                    result = {"session_id": session.id}
                case "openenv/session/close":
                    session = self._named(params.get("session_id"))
                    session.lost = "the session is closed"
                    result = {"session_id": session.id, "closed": True}
                case "ping":
                    result = {}
                case "tools/list" | "tools/call":
                    session = own or self._named(params.get("session_id"))
                    listed = method == "tools/list"
                    result = {"tools": _tools(session)} if listed else await _call(session, params)
                case _:
                    return rpc_error(request, NOT_FOUND, f"there is no method {method[:60]}"), session
        except DataError as error:
            return rpc_error(request, INVALID_PARAMS, str(error)), session
        except (NoRoom, EnvironmentLost) as error:
            return rpc_error(request, LOST, str(error)), session
        finally:
            if session is not None and session.lost and session is not own:
                await self.close(session)
        return {"jsonrpc": "2.0", "id": id, "result": result}, session

    def _named(self, id: object) -> Session:
        """Return the session that a client of OpenEnv names.

        Raises:
            DataError: There is none.
        """
        session = self._open.get(id) if isinstance(id, str) else None
        if session is None:
            told = "session_id is missing" if id is None else f"there is no session {str(id)[:60]!r} any more"
            raise DataError(f"{told}; openenv/session/create makes one, or initialize, for clients of MCP")
        session.used = time.monotonic()
        return session

    async def delete(self, request: web.Request) -> web.Response:
        """End a session of MCP."""
        session = self._open.get(request.headers.get(SESSION_HEADER, ""))
        if session is None:
            return web.Response(status=404)
        await self.close(session)
        return web.Response(status=204)


SESSION_HEADER = "Mcp-Session-Id"


async def _say(socket: web.WebSocketResponse, message: str, code: str) -> None:
    with suppress(ConnectionError):
        await socket.send_str(wire.error_message(message, code))


def _fixed(query: Mapping[str, str]) -> dict[str, Any]:
    if "task" not in query:
        return {}
    seed = query.get("seed", "0")
    try:
        return {"task": wire.decode_object(query["task"]), "seed": int(seed)}
    except ValueError:
        raise DataError(f"seed={seed[:40]!r} in the address is no integer") from None


def _sent(
    message: dict[str, Any] | None, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    if message is None:
        return web.Response(status=202)
    text = wire.encode(message)
    return web.Response(text=text, status=status, content_type="application/json", headers=headers)
