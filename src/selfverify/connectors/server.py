"""A server of environments: OpenEnv's wire at ``/ws``, the Model Context Protocol at ``/mcp``.

Every session has an environment of its own; many sessions share a process. A server of several environments
has each below its name, such as ``/phone/ws``; the only one of a server is also at ``/ws``.

Without keys everybody who reaches the port may ask. So a server without keys listens on this machine only. No
server answers browsers: a page that somebody has open could ask it, too.

`selfverify agent serve` and the pool's `connectors.sources.ProcessSource` run such a server. The gateway
(`serving.server`) uses `open_port`, `stop_asked` and `Keys`, too.

Source: Model Context Protocol, versions 2024-11-05 to 2025-11-25, base protocol and tools. The messages of
OpenEnv's wire are in `connectors.openenv`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import pkgutil
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from selfverify.connectors import openenv as wire
from selfverify.connectors.content import ContentLimits
from selfverify.connectors.pool import KEYS_VARIABLE, EnvironmentServerConfig, Factory, close_in_time
from selfverify.core.config import how_to_get
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, __version__
from selfverify.core.files import read_regular
from selfverify.core.worker import end_with_parent

try:
    from aiohttp import WSMsgType, web
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None


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
        """Close sessions that have been silent for too long; sockets watch their own."""
        idle = [session for session in self._open.values() if session.silent and session.socket is None]
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
        idle_s = self.limits.idle_s
        receiving = asyncio.ensure_future(socket.receive())
        answering: asyncio.Future[str | None] | None = None
        try:
            while True:
                await asyncio.wait({receiving}, timeout=idle_s)
                if not receiving.done():
                    if not session.silent:
                        continue  # it is asked over HTTP
                    return await _say(socket, f"nothing was asked for {idle_s:g} s", wire.SESSION_ERROR)
                message, session.used = receiving.result(), time.monotonic()
                if message.type != WSMsgType.TEXT:
                    return None
                receiving = asyncio.ensure_future(socket.receive())
                answering = asyncio.ensure_future(self.answer(session, message.data))
                await asyncio.wait({receiving, answering}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    return None  # it has gone, or speaks before it was answered
                reply = answering.result()
                if reply is None:
                    return None
                with suppress(ConnectionError):
                    await socket.send_str(reply)
                if session.lost:
                    return None
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


def address_of(host: str, port: int) -> str:
    """Return where a server of ours listens, as an address; IPv6's colons stand in brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def open_port(runner: web.AppRunner, stack: AsyncExitStack, host: str, port: int) -> int:
    """Let an application listen. Closing ``stack`` closes it.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened.
    """
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be opened: {error.strerror or error}") from None
    address: tuple[str, int] = runner.addresses[0]
    return address[1]


def stop_asked() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, from now on, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop.set)
    return stop


class Keys:
    """Bearer keys of those who may ask, kept and compared as digests.

    Every key is compared, each in constant time, so that timing does not tell which key was close.

    Args:
        keys: The keys.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._known = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._known)

    def admit(self, header: str | None) -> bool:
        """Return whether an ``Authorization`` header has one of the keys, or none is needed."""
        scheme, _, given = (header or "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = [hmac.compare_digest(known, digest) for known in self._known]
        return not found or (scheme.lower() == "bearer" and any(found))


def read_keys(path: Path) -> list[str]:
    """Read keys from a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    try:
        lines = [line.strip() for line in read_regular(path).decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys {path} cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key; leave it out to serve everybody who can reach the port")
    return keys


LOOPBACK = ("127.0.0.1", "::1", "localhost")


class EnvironmentServer:
    """Serves environments to many clients.

    Args:
        environments: By name, what makes an environment.
        limits: How many sessions each environment may have, how large and how long requests may be.
        keys: The keys of those who may ask; without any, everybody may who can reach the port.

    Raises:
        ConfigError: There is no environment, or a name cannot stand in an address.
    """

    def __init__(
        self,
        environments: Mapping[str, Factory],
        limits: SessionLimits | None = None,
        keys: Keys | None = None,
    ) -> None:
        wrong = [name for name in environments if not name.replace("-", "").replace("_", "").isalnum()]
        if wrong or not environments:
            found = f"not {', '.join(wrong)}" if wrong else "and there is none"
            raise ConfigError(f"environments have names of letters, digits, - and _, {found}")
        self.limits = limits or SessionLimits()
        self.keys = keys or Keys([])
        self.endpoints = {name: Endpoint(name, make, self.limits) for name, make in environments.items()}

    def application(self) -> web.Application:
        """Return the application. When it ends, every session is closed."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.limits.content.message_bytes)
        app.router.add_get("/health", self._health)
        for name, endpoint in self.endpoints.items():
            for path in (f"/{name}", "") if len(self.endpoints) == 1 else (f"/{name}",):
                app.router.add_get(f"{path}/ws", endpoint.serve)
                app.router.add_post(f"{path}/mcp", endpoint.post)
                app.router.add_delete(f"{path}/mcp", endpoint.delete)
        app.on_shutdown.append(self._stop)
        app.cleanup_ctx.append(self._sweeping)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="this server is not for browsers")
        if request.path != "/health" and not self.keys.admit(request.headers.get("Authorization")):
            raise web.HTTPUnauthorized(text="a key is needed: Authorization: Bearer KEY")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        sessions = {name: len(endpoint) for name, endpoint in self.endpoints.items()}
        return web.json_response({"status": "healthy", "sessions": sessions, "limit": self.limits.sessions})

    async def _sweeping(self, _: web.Application) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(self.limits.idle_s / 4, 30.0))
                for endpoint in self.endpoints.values():
                    await endpoint.sweep()

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        await asyncio.wait({sweeping})
        await asyncio.gather(*(endpoint.close() for endpoint in self.endpoints.values()))

    async def _stop(self, _: web.Application) -> None:
        await asyncio.gather(*(endpoint.stop() for endpoint in self.endpoints.values()))


async def start_server(
    server: EnvironmentServer, stack: AsyncExitStack, host: str = "127.0.0.1", port: int = 0
) -> int:
    """Open the port. Closing ``stack`` closes it, and every session.

    Returns:
        The port; for port 0 the free one that was taken.

    Raises:
        ConfigError: The port cannot be opened, or other machines could reach it without a key.
    """
    if host not in LOOPBACK and not server.keys:
        raise ConfigError(
            f"other machines reach {host}: set {KEYS_VARIABLE} to the keys of those who may ask"
        )
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=5.0)
    return await open_port(runner, stack, host, port)


FORCE_S = 20.0
"""Seconds that an orphaned server gets to close its sessions."""


def find_environment(spec: str, known: Mapping[str, Factory] | None = None) -> tuple[str, Factory]:
    """Return the name and the factory of an environment.

    Args:
        spec: A name that is known, or ``name=package.module:factory``; the factory is a class or a function
            without arguments.
        known: Environments by name.

    Raises:
        ConfigError: It has another form, or there is no such factory.
    """
    known = known or {}
    if spec in known:
        return spec, known[spec]
    name, _, path = spec.partition("=")
    if not name or ":" not in path:
        names = f"; known by name are {', '.join(known)}" if known else ""
        raise ConfigError(
            how_to_get(spec)
            or f"{spec!r} is no environment; one looks like phone=package.module:factory{names}"
        )
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{spec!r} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{spec!r}: this is nothing that can be called")
    return name, factory


async def serve_until_told(
    settings: EnvironmentServerConfig,
    on_ready: Callable[[int], None],
    known: Mapping[str, Factory] | None = None,
    with_parent: bool = False,
    content: ContentLimits = CALLS,
) -> None:
    """Serve until SIGINT or SIGTERM; then close every session.

    Args:
        settings: The environments and the address.
        on_ready: Called with the port.
        known: Environments by name, beside those that the settings import.
        with_parent: End also when the standard input ends, as it does when the process that started this one
            is gone.
        content: Limits of the content that a client may send.

    Raises:
        ConfigError: There is no such environment, the file of keys cannot be read, or as `start_server`.
    """
    environments = dict(find_environment(spec, known) for spec in settings.environments)
    limits = SessionLimits(settings.sessions, settings.idle, settings.busy, content=content)
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    keys += read_keys(settings.keys) if settings.keys else []
    server = EnvironmentServer(environments, limits, Keys(keys))
    stop = stop_asked()
    async with AsyncExitStack() as stack:
        on_ready(await start_server(server, stack, settings.host, settings.port))
        if with_parent:
            loop = asyncio.get_running_loop()
            # By force, if an environment keeps the loop from hearing of it.
            end_with_parent(lambda: loop.call_soon_threadsafe(stop.set), FORCE_S)
        await stop.wait()
        logger.info("stopping; %d sessions are open", sum(map(len, server.endpoints.values())))


def main() -> None:
    """Serve for a `ProcessSource`: settings come as JSON, and the port is printed as JSON."""
    # All that environments print goes to standard error.
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def say(port: int) -> None:
        print(json.dumps({"port": port}), file=ready, flush=True)

    try:
        settings = EnvironmentServerConfig.model_validate_json(sys.argv[1])
        asyncio.run(serve_until_told(settings, say, with_parent=True))
    except SelfVerifyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
