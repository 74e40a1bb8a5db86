"""A WebSocket of OpenEnv's wire on the server: one session from its first message to its last."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import WSMsgType, web

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import DataError
from selfverify.remote.environments import wire
from selfverify.remote.environments.session_replies import answer
from selfverify.remote.environments.sessions import NoRoom, Session, SessionTable


class SocketEndpoint:
    """Answers at ``/ws``. A socket's session ends with it, one that was opened elsewhere goes on.

    No pings are sent: an environment that keeps its process busy could not answer them in time. A client that
    has gone without a word is noticed when it is idle for too long.
    """

    def __init__(self, table: SessionTable) -> None:
        self.table = table
        self._sockets: set[web.WebSocketResponse] = set()

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one socket until its end."""
        most = self.table.limits.content.message_bytes
        socket = web.WebSocketResponse(max_msg_size=most, compress=False, timeout=1.0)
        await socket.prepare(request)
        self._sockets.add(socket)
        name = request.query.get("session_id")
        try:
            session = self._attach(name) if name else self.table.open()
        except (NoRoom, DataError, EnvironmentLost) as error:
            code = wire.CAPACITY_REACHED if isinstance(error, NoRoom) else wire.SESSION_ERROR
            await _say(socket, str(error), code)
            session = None
        try:
            if session is not None:
                await self._converse(socket, session)
        finally:
            if session is not None:
                session.attached = False
                if not name or session.lost:
                    await asyncio.shield(self.table.close(session))
            self._sockets.discard(socket)
            await socket.close()
        return socket

    async def stop(self) -> None:
        """Close all sockets, whose sessions then end."""
        await asyncio.gather(*(socket.close(code=1001) for socket in list(self._sockets)))

    def _attach(self, name: str) -> Session:
        session = self.table.find(name)
        if session is None:
            raise DataError("there is no such session")
        if session.attached:
            raise DataError("the session has a socket already")
        return session

    async def _converse(self, socket: web.WebSocketResponse, session: Session) -> None:
        """Answer message by message. A client that goes while it is answered breaks that off."""
        session.attached = True
        idle_s = self.table.limits.idle_s
        receiving = asyncio.ensure_future(socket.receive())
        answering: asyncio.Future[str | None] | None = None
        try:
            while True:
                await asyncio.wait({receiving}, timeout=idle_s)
                if not receiving.done():
                    return await _say(socket, f"nothing was asked for {idle_s:g} s", wire.SESSION_ERROR)
                message = receiving.result()
                if message.type != WSMsgType.TEXT:
                    return None
                receiving = asyncio.ensure_future(socket.receive())
                answering = asyncio.ensure_future(answer(session, message.data))
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


async def _say(socket: web.WebSocketResponse, message: str, code: str) -> None:
    with suppress(ConnectionError):
        await socket.send_str(wire.encode(wire.error_message(message, code)))
