"""Logged rollouts as trajectories of ATIF, with tokens and log-probabilities.

ATIF is the Agent Trajectory Interchange Format of the Harbor project (its RFC 0001). A file is one JSON
object: what an agent said step by step, what tools and users replied, and numbers. We write version 1.8, and
of its fields those that we know something for. Images are files of their own.

A turn of the policy is a step of the agent. An environment's reply to a turn with tool calls (channel
``action``) is that step's observation; what it says otherwise is a step of the user. Texts stand as they were
stored, with the chat template's marks, so that nothing of them is lost; images follow the text. Values for
which ATIF has no field are in the ``extra`` of a step or result, under `OURS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import __version__
from selfverify.core.jsonl_store import json_line
from selfverify.core.trajectory import Finish
from selfverify.rollouts.recording import RecordedGroup, RecordedSegment
from selfverify.tasks.tool_calls import read_calls
from selfverify.tasks.tool_episode import ACTION

VERSION = "ATIF-v1.8"
"""The version that is written."""

Json = dict[str, Any]
Content = str | list[Json]
"""The words of a message: a text, or parts of texts and images."""

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
    about: Json
    channel: str = ""
    finish: str | None = None
    metrics: Json = field(default_factory=dict)


def to_trajectory(
    session: str, name: str, model: Any, steps: list[Json], tokens: int, ours: Mapping[str, Any]
) -> Json:
    """Return a file's whole content.

    Args:
        session: The name of the run.
        name: The name of the trajectory.
        model: The policy that acted, if it has a name.
        steps: Its steps.
        tokens: How many tokens the policy has written.
        ours: All that ATIF has no field for.
    """
    return {
        "schema_version": VERSION,
        "session_id": f"{OURS}-{session}",
        "trajectory_id": name,
        "agent": {"name": OURS, "version": __version__} | ({"model_name": str(model)} if model else {}),
        "steps": steps,
        "final_metrics": {"total_completion_tokens": tokens, "total_steps": len(steps)},
        "extra": {OURS: without_surrogates(ours)},
    }


def content(text: str, images: Sequence[str]) -> Content:
    """Return a message's content: a text, or where there are images parts."""
    if not images:
        return text
    return [{"type": "text", "text": text}, *map(image_part, images)]


def image_part(name: str) -> Json:
    """Return the part that shows an image of the folder of images."""
    kind = _MEDIA_TYPES.get(PurePosixPath(name).suffix.lower(), "image/png")
    return {"type": "image", "source": {"media_type": kind, "path": f"{SHOWN_IMAGES}/{name}"}}


def to_question(entry: Mapping[str, Any]) -> Json:
    """Return a problem as the first step: its image, if there is one, before the question."""
    told: Content = str(entry.get("question") or "")
    if image := entry.get("image"):
        told = [image_part(str(image)), {"type": "text", "text": told}]
    return {"step_id": 1, "source": "user", "message": told, "extra": {OURS: {"prompt": True}}}


def to_steps(messages: Sequence[Message], before: Sequence[Json] = ()) -> list[Json]:
    """Return the steps of a conversation, numbered from 1, behind the steps ``before`` it."""
    steps, shows = list(before), False
    for message in messages:
        told, ours = content(message.text, message.images), {OURS: message.about}
        spoken = message.about["author"] == "policy"
        if shows and not spoken:
            called = steps[-1].get("tool_calls", ())
            source = {"source_call_id": called[0]["tool_call_id"]} if len(called) == 1 else {}
            steps[-1]["observation"] = {"results": [{**source, "content": told, "extra": ours}]}
            shows = False
            continue
        step: Json = {"step_id": len(steps) + 1, "source": "agent" if spoken else "user", "message": told}
        if spoken:
            shows = message.channel == ACTION
            step |= {"tool_calls": calls} if shows and (calls := _calls(message)) else {}
            step |= {"metrics": message.metrics} if message.metrics else {}
            step["llm_call_count"] = 1
        steps.append({**step, "extra": ours})
    return steps


def _calls(message: Message) -> list[Json]:
    """The tool calls in a turn, without the token that ended it; none where they cannot be read."""
    turn = int(message.about["turn"])
    finish = Finish.STOP if message.finish is None else Finish(message.finish)
    read = read_calls(PolicyTurn(without_end(message.text), [], finish, turn))
    plain = [without_surrogates([call.name, call.arguments]) for call in read.calls]
    return [
        {"tool_call_id": f"turn-{turn}-call-{n}", "function_name": name, "arguments": arguments}
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


def rollout_to_atif(settings: Mapping[str, Any], row: RecordedGroup, number: int) -> Json:
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
    about: Json = {"author": first.author, "turn": first.turn, "segments": parts}
    metrics: Json = {}
    if first.author == "policy":
        whole = len(logprobs) == len(tokens)
        metrics = {"completion_tokens": len(tokens), "completion_token_ids": tokens}
        metrics |= {"logprobs": logprobs} if whole and logprobs else {}
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
