"""An observation as the data of a reply on OpenEnv's wire (`wire`).

It is ``{observation: {tool_name, result: {content, is_error}, error, metadata}, reward, done, metadata}``.
What is shown stands in ``content`` (`content.to_blocks`). The protocol has no field for the round, for
``truncated`` and for ``info``; they stand in ``metadata``, which the protocol leaves to environments. There
``done`` is the task's own end. The protocol's ``done`` is also true after ``truncated``, since its clients go
on until it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL.Image import Image
from pydantic_core import to_json

from selfverify.core.episode import StepResult
from selfverify.core.errors import DataError
from selfverify.remote.environments.content import ContentLimits, from_blocks, from_data_urls, to_blocks

_LOST = frozenset({"timeout", "transport_error"})
"""Types of a tool's error after which nothing is known of the environment."""


def observation_data(observation: StepResult, tool: str = "") -> dict[str, Any]:
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


def read_observation(data: Mapping[str, Any], due: int, limits: ContentLimits) -> StepResult:
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
    # True and 1.0 are equal to 1, and are no numbers of rounds.
    if type(told) is not int or (told != due and not (error and 0 <= told == due - 1)):
        raise DataError(f"the observation is of round {str(told)[:20]}, and round {due} is due")
    foreign = {name: value for name, value in metadata.items() if name not in ("round", "done", "truncated")}
    info = metadata.get("info", foreign)
    return StepResult(
        told,
        text,
        images,
        error,
        done=_flag(metadata.get("done", data.get("done")), "done"),
        truncated=_flag(metadata.get("truncated"), "truncated"),
        reward=read_reward(data.get("reward")),
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


def read_reward(value: object) -> float | None:
    """Return a reward as a server has sent it; None where nothing was scored.

    Raises:
        DataError: It is no finite number.
    """
    if value is None:
        return None
    try:
        reward = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise DataError(f"the reward is no finite number: {str(value)[:40]}")
    return reward
