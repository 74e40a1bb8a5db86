"""Logged rollouts as trajectories of ATIF, with tokens and log-probabilities, and the same rollouts again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter, ValidationError

from selfverify.core.errors import DataError
from selfverify.data.atif import VERSION, AtifFinalMetrics, AtifMetrics, AtifTrajectory
from selfverify.rollouts.atif_steps import OURS, Message, our_agent, to_messages, to_steps
from selfverify.rollouts.recorded import RecordedGroup, RecordedSegment, RecordedTrajectory

_WHOLE = ("tokens", "logprobs", "text", "images")
"""Fields of segments that a message joins; each segment notes how much of it is its own."""


def rollout_to_atif(settings: Mapping[str, Any], row: RecordedGroup, number: int) -> AtifTrajectory:
    """Return trajectory ``number`` of a line of a rollout log whose header has these ``settings``."""
    trajectory = row.trajectories[number]
    messages = [
        _message(list(own)) for _, own in groupby(trajectory.segments, key=lambda s: (s.author, s.turn))
    ]
    steps = to_steps(messages)
    written = sum(len(s.tokens) for s in trajectory.segments if s.author == "policy")
    step = settings.get("step", 0)
    ours = {
        "kind": "rollout",
        "settings": dict(settings),
        "index": row.index,
        "problem": row.problem,
        "digest": row.digest,
        "number": number,
        **{name: value for name, value in asdict(trajectory).items() if name != "segments"},
    }
    return AtifTrajectory(
        schema_version=VERSION,
        session_id=f"{OURS}-{settings.get('weights', '')}",
        trajectory_id=f"step-{step}/{row.index}/{row.problem}#{number}",
        agent=our_agent(None),
        steps=steps,
        final_metrics=AtifFinalMetrics(total_completion_tokens=written, total_steps=len(steps)),
        extra={OURS: json.loads(json.dumps(ours))},
    )


def rollout_from_atif(trajectory: AtifTrajectory) -> tuple[dict[str, Any], RecordedTrajectory] | None:
    """Return what stands beside the steps, and the rollout; None for what is no rollout of ours.

    Raises:
        DataError: Our part of the trajectory is damaged; the message names the field.
    """
    ours = (trajectory.extra or {}).get(OURS)
    if not isinstance(ours, dict) or ours.get("kind") != "rollout":
        return None
    try:
        segments = [segment for message in to_messages(trajectory.steps) for segment in _segments(message)]
        fields = {name: ours[name] for name in ("scores", "rewards", "parsed")} | {"segments": segments}
        found = TypeAdapter(RecordedTrajectory).validate_json(json.dumps(fields))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise DataError(f"extra.{OURS}: {place}: {fault['msg']}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"extra.{OURS} is damaged: {type(error).__name__}: {error}") from None
    return ours, found


def _message(segments: list[RecordedSegment]) -> Message:
    first, last = segments[0], segments[-1]
    tokens = [token for s in segments for token in s.tokens]
    logprobs = [value for s in segments for value in s.logprobs]
    parts = [
        {name: len(value) if name in _WHOLE else value for name, value in asdict(s).items()} for s in segments
    ]
    for part in parts:
        del part["author"], part["turn"]
    about: dict[str, Any] = {"author": first.author, "turn": first.turn, "segments": parts}
    metrics = None
    if first.author == "policy":
        whole = len(logprobs) == len(tokens)
        metrics = AtifMetrics(
            completion_tokens=len(tokens),
            completion_token_ids=tokens,
            logprobs=logprobs if whole and logprobs else None,
        )
        if not whole:
            about["logprobs"] = logprobs
    else:
        about |= {"tokens": tokens, "logprobs": logprobs}
    return Message(
        "".join(s.text for s in segments),
        [f"{name}.png" for s in segments for name in s.images],
        about,
        first.channel,
        last.finish,
        metrics,
    )


def _segments(message: Message) -> list[dict[str, Any]]:
    """A message's segments, each with its share of what the message joins."""
    about, numbers = message.about, message.metrics or AtifMetrics()
    whole: dict[str, Any] = {
        "tokens": about.get("tokens", numbers.completion_token_ids),
        "logprobs": about.get("logprobs", numbers.logprobs) or [],
        "text": message.text,
        "images": [name.removesuffix(".png") for name in message.images],
    }
    taken, made = dict.fromkeys(_WHOLE, 0), []
    for part in about["segments"]:
        own: dict[str, Any] = {"author": about["author"], "turn": about["turn"], **part}
        for name in _WHOLE:
            start, taken[name] = taken[name], taken[name] + part[name]
            own[name] = whole[name][start : taken[name]]
        made.append(own)
    return made
