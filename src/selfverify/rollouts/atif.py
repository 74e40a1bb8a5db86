"""Logged rollouts as trajectories of ATIF, with tokens and log-probabilities.

ATIF is the Agent Trajectory Interchange Format of the Harbor project (its RFC 0001). A file is one JSON
object: what an agent said step by step, what tools and users replied, and numbers. We write version 1.8, of
whose fields the classes here have those that we know something for. Images are files of their own.

A turn of the policy is a step of the agent. An environment's reply to a turn with tool calls (channel
``action``) is that step's observation; what it says otherwise is a step of the user. Texts stand as they were
stored, with the chat template's marks, so that nothing of them is lost; images follow the text. Values for
which ATIF has no field are in the ``extra`` of a step or result, under `OURS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import __version__
from selfverify.core.jsonl_store import json_line
from selfverify.core.trajectory import Finish
from selfverify.rollouts.recording import RecordedGroup, RecordedSegment
from selfverify.tasks.tool_calls import read_calls
from selfverify.tasks.tool_episode import ACTION

VERSION = "ATIF-v1.8"
"""The version that is written."""


class AtifSource(BaseModel):
    """Where an image is: a path relative to the trajectory's file."""

    media_type: str
    path: str


class AtifContent(BaseModel):
    """A part of a message: ``text``, or ``image`` with a source."""

    type: str
    text: str | None = None
    source: AtifSource | None = None


Content = str | list[AtifContent]


class AtifCall(BaseModel):
    """A call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class AtifResult(BaseModel):
    """The result of a call (``source_call_id``), or of an action without one."""

    source_call_id: str | None = None
    content: Content | None = None
    extra: dict[str, Any] | None = None


class AtifObservation(BaseModel):
    """The results of an agent's step."""

    results: list[AtifResult]


class AtifMetrics(BaseModel):
    """Numbers of one step of an agent; token ids and log-probabilities are those of what it wrote."""

    completion_tokens: int | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class AtifStep(BaseModel):
    """A step: a message of a ``user`` or the ``agent``, with its effect."""

    step_id: int
    source: str
    message: Content
    tool_calls: list[AtifCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    llm_call_count: int | None = None
    extra: dict[str, Any] | None = None


class AtifAgent(BaseModel):
    """The agent that acted."""

    name: str
    version: str
    model_name: str | None = None


class AtifFinalMetrics(BaseModel):
    """Numbers of a whole trajectory."""

    total_completion_tokens: int | None = None
    total_steps: int | None = None


class AtifTrajectory(BaseModel):
    """A file's whole content. ``session_id`` names a run, ``trajectory_id`` this one of its trajectories."""

    schema_version: str
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep]
    final_metrics: AtifFinalMetrics | None = None
    extra: dict[str, Any] | None = None


OURS = "selfverify"
"""The key of our part of an ``extra``."""
EXPORT_FILE = "export.json"
"""The file that marks a folder of exported trajectories."""
SHOWN_IMAGES = "images"
"""The folder of images beside the files of trajectories."""
_MEDIA_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_END = re.compile(r"(<\|[^<>|]{1,40}\|>|</s>|<end_of_turn>)\s*\Z")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    Args:
        text: Its text.
        images: Names of files in the folder of images.
        about: Values for which ATIF has no field, as JSON: ``author`` and ``turn`` at least.
        channel: The channel of its beginning.
        finish: How a turn ended.
        metrics: Numbers of a turn.
    """

    text: str
    images: Sequence[str]
    about: dict[str, Any]
    channel: str = ""
    finish: str | None = None
    metrics: AtifMetrics | None = None


def to_trajectory(
    session: str, name: str, model: Any, steps: list[AtifStep], tokens: int, ours: Mapping[str, Any]
) -> AtifTrajectory:
    """Return a file's whole content.

    Args:
        session: The name of the run.
        name: The name of the trajectory.
        model: The policy that acted, if it has a name.
        steps: Its steps.
        tokens: How many tokens the policy has written.
        ours: All that ATIF has no field for.
    """
    return AtifTrajectory(
        schema_version=VERSION,
        session_id=f"{OURS}-{session}",
        trajectory_id=name,
        agent=AtifAgent(name=OURS, version=__version__, model_name=str(model) if model else None),
        steps=steps,
        final_metrics=AtifFinalMetrics(total_completion_tokens=tokens, total_steps=len(steps)),
        extra={OURS: without_surrogates(ours)},
    )


def content(text: str, images: Sequence[str]) -> Content:
    """Return a message's content: a text, or where there are images parts."""
    if not images:
        return text
    return [AtifContent(type="text", text=text), *map(image_part, images)]


def image_part(name: str) -> AtifContent:
    """Return the part that shows an image of the folder of images."""
    kind = _MEDIA_TYPES.get(PurePosixPath(name).suffix.lower(), "image/png")
    return AtifContent(type="image", source=AtifSource(media_type=kind, path=f"{SHOWN_IMAGES}/{name}"))


def to_question(entry: Mapping[str, Any]) -> AtifStep:
    """Return a problem as the first step: its image, if there is one, before the question."""
    told: Content = str(entry.get("question") or "")
    if image := entry.get("image"):
        told = [image_part(str(image)), AtifContent(type="text", text=told)]
    return AtifStep(step_id=1, source="user", message=told, extra={OURS: {"prompt": True}})


def to_steps(messages: Sequence[Message], before: Sequence[AtifStep] = ()) -> list[AtifStep]:
    """Return the steps of a conversation, numbered from 1, behind the steps ``before`` it."""
    steps, shows = list(before), False
    for message in messages:
        told, ours = content(message.text, message.images), {OURS: message.about}
        spoken = message.about["author"] == "policy"
        if shows and not spoken:
            called = steps[-1].tool_calls or []
            source = called[0].tool_call_id if len(called) == 1 else None
            result = AtifResult(source_call_id=source, content=told, extra=ours)
            steps[-1].observation = AtifObservation(results=[result])
            shows = False
            continue
        source = "agent" if spoken else "user"
        steps.append(AtifStep(step_id=len(steps) + 1, source=source, message=told, extra=ours))
        if spoken:
            shows = message.channel == ACTION
            steps[-1].tool_calls = (_calls(message) if shows else None) or None
            steps[-1].metrics, steps[-1].llm_call_count = message.metrics, 1
    return steps


def _calls(message: Message) -> list[AtifCall]:
    """The tool calls in a turn, without the token that ended it; none where they cannot be read."""
    turn = int(message.about["turn"])
    finish = Finish.STOP if message.finish is None else Finish(message.finish)
    read = read_calls(PolicyTurn(without_end(message.text), [], finish, turn))
    plain = [without_surrogates([call.name, call.arguments]) for call in read.calls]
    return [
        AtifCall(tool_call_id=f"turn-{turn}-call-{n}", function_name=name, arguments=arguments)
        for n, (name, arguments) in enumerate(plain)
    ]


def without_end(text: str) -> str:
    """A turn's text without the token that ended it."""
    return _END.sub("", text)


def without_surrogates(value: Any) -> Any:
    """Return a JSON value with "?" for each lone surrogate, which UTF-8 cannot hold.

    Raises:
        ValueError: The value holds NaN or an infinity.
    """
    return json.loads(json_line(value))


_WHOLE = ("tokens", "logprobs", "text", "images")
"""Fields of segments that a message joins; each segment notes how much of it is its own."""


def rollout_to_atif(settings: Mapping[str, Any], row: RecordedGroup, number: int) -> AtifTrajectory:
    """Return trajectory ``number`` of a line of a rollout log whose header has these ``settings``."""
    trajectory = row.trajectories[number]
    turns = groupby(trajectory.segments, key=lambda s: (s.author, s.turn))
    messages = [_message(list(own)) for _, own in turns]
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
    name = f"step-{step}/{row.index}/{row.problem}#{number}"
    return to_trajectory(settings.get("weights", ""), name, None, steps, written, ours)


def _message(segments: list[RecordedSegment]) -> Message:
    first, last = segments[0], segments[-1]
    tokens = [token for s in segments for token in s.tokens]
    logprobs = [value for s in segments for value in s.logprobs]
    parts = []
    for own in map(asdict, segments):
        del own["author"], own["turn"]
        parts.append(own | {name: len(own[name]) for name in _WHOLE})
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
