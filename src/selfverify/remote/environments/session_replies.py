"""What a server replies to a message of OpenEnv's wire (`wire`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from selfverify.core.episode import EnvironmentLost, StepResult
from selfverify.core.errors import DataError
from selfverify.remote.environments import wire
from selfverify.remote.environments.mcp_rpc import answer_rpc
from selfverify.remote.environments.sessions import Session
from selfverify.remote.environments.wire_observations import observation_data


async def answer(session: Session, raw: str | bytes) -> str | None:
    """Return the reply to a message; None after ``close``.

    After a reply to a lost environment `Session.lost` says why, and the session ends.
    """
    try:
        kind, data = wire.decode(raw)
    except DataError as error:
        return wire.encode(wire.error_message(str(error), wire.INVALID_JSON))
    if kind == "close":
        return None
    try:
        return await _answer(session, kind, data)
    except DataError as error:
        return wire.encode(wire.error_message(str(error), wire.VALIDATION_ERROR))
    except EnvironmentLost as error:
        return wire.encode(wire.error_message(str(error), wire.SESSION_ERROR))


async def _answer(session: Session, kind: str, data: dict[str, Any]) -> str:
    match kind:
        case "reset":
            task, seed = wire.read_reset(data)
            return await session.written(await session.reset(task, seed), partial(_shown, ""))
        case "step":
            call = wire.read_call(data)
            if call is None:
                return wire.encode(
                    {"type": "observation", "data": wire.tools_data(session.environment.tools)}
                )
            return await session.written(await session.act(call), partial(_shown, call.name))
        case "state":
            return wire.encode({"type": "state", "data": await session.state() or {}})
        case wire.SUBMITTED:
            await session.submitted(wire.read_submission(data))
            return wire.encode({"type": wire.SUBMITTED, "data": {}})
        case "mcp":
            return wire.encode({"type": "mcp", "data": await answer_rpc(session, data) or {}})
    return wire.encode(wire.error_message(f"there is no message of type {kind[:40]!r}", wire.UNKNOWN_TYPE))


def _shown(tool: str, observation: StepResult) -> str:
    return wire.encode({"type": "observation", "data": observation_data(observation, tool)})
