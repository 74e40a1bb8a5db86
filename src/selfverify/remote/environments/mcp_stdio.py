"""An environment as a server of the Model Context Protocol on standard input and output: one session."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from selfverify.core.errors import DataError
from selfverify.remote.environments import wire
from selfverify.remote.environments.mcp_rpc import PARSE_ERROR, answer_rpc, rpc_error
from selfverify.remote.environments.sessions import Factory, SessionLimits, SessionTable


async def serve_stdio(
    factory: Factory,
    task: tuple[dict[str, Any], int] | None = None,
    limits: SessionLimits | None = None,
) -> None:
    """Answer the requests on standard input, one in a line, until it ends or the environment is lost.

    Args:
        factory: Makes the environment.
        task: The task and the seed; without them the client names them.
        limits: How long requests may take, and how large they may be.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an environment prints would be taken for a reply
    table = SessionTable("environment", factory, limits or SessionLimits())
    session = table.open(begins=True, task=task)
    most = table.limits.content.message_bytes
    try:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline, most + 1):
            try:
                if len(line) > most:
                    raise DataError(f"a request of more than {most:,} bytes")
                reply = await answer_rpc(session, wire.decode_object(line))
            except DataError as error:
                reply = rpc_error({}, PARSE_ERROR, str(error))
            if reply is not None:
                print(wire.encode(reply), file=replies, flush=True)
            if session.lost or len(line) > most:
                return
    finally:
        await table.close(session)
