"""Conversations as steps of ATIF, and the same conversations again.

What the policy says is a step of the agent. What an environment shows to a turn with tool calls (channel
``action``) is that step's observation; what it says otherwise is a step of the user. Texts stand as they were
stored, with the chat template's marks, so that nothing of them is lost; images follow the text. What ATIF has
no field for is in the ``extra`` of a step or result, under `OURS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import DataError, __version__
from selfverify.core.trajectory import Finish
from selfverify.data.atif import (
    AtifAgent,
    AtifCall,
    AtifContent,
    AtifMetrics,
    AtifObservation,
    AtifResult,
    AtifSource,
    AtifStep,
    Content,
    images_of,
    text_of,
)
from selfverify.tasks.tool_calls import read_calls
from selfverify.tasks.tool_episode import ACTION

OURS = "selfverify"
"""The key of our part of an ``extra``."""
EXPORT_FILE = "export.json"
"""What marks a folder of trajectories that we have exported."""
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
        about: What ATIF has no field for, as JSON values: ``author`` and ``turn`` at least.
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


def our_agent(model: Any) -> AtifAgent:
    """Return who acted: the policy, in this version of the library."""
    return AtifAgent(name=OURS, version=__version__, model_name=str(model) if model else None)


def content(text: str, images: Sequence[str]) -> Content:
    """Return a message's content: a text, or where there are images parts."""
    if not images:
        return text
    return [AtifContent(type="text", text=text), *map(image_part, images)]


def image_part(name: str) -> AtifContent:
    """Return the part that shows an image of the folder of images."""
    kind = _MEDIA_TYPES.get(PurePosixPath(name).suffix.lower(), "image/png")
    return AtifContent(type="image", source=AtifSource(media_type=kind, path=f"{SHOWN_IMAGES}/{name}"))


def to_steps(messages: Sequence[Message], before: Sequence[AtifStep] = ()) -> list[AtifStep]:
    """Return the steps of a conversation, numbered from 1, behind the steps ``before`` it."""
    steps, shows = list(before), False
    for message in messages:
        told, ours = content(message.text, message.images), {OURS: message.about}
        if message.about["author"] == "policy":
            calls = _calls(message) if message.channel == ACTION else []
            steps.append(
                AtifStep(
                    step_id=len(steps) + 1,
                    source="agent",
                    message=told,
                    tool_calls=calls or None,
                    metrics=message.metrics,
                    llm_call_count=1,
                    extra=ours,
                )
            )
            shows = message.channel == ACTION
        elif shows:
            called = steps[-1].tool_calls or []
            source = called[0].tool_call_id if len(called) == 1 else None
            result = AtifResult(source_call_id=source, content=told, extra=ours)
            steps[-1].observation = AtifObservation(results=[result])
            shows = False
        else:
            steps.append(AtifStep(step_id=len(steps) + 1, source="user", message=told, extra=ours))
    return steps


def to_messages(steps: Sequence[AtifStep]) -> Iterator[Message]:
    """Yield the messages that `to_steps` was given; steps that it did not make are left out.

    Raises:
        DataError: A step's part under `OURS` is damaged, or an image is not in the folder of images.
    """
    for step in steps:
        told: list[tuple[Content | None, dict[str, Any] | None]] = [(step.message, step.extra)]
        told += [(r.content, r.extra) for r in (step.observation.results if step.observation else ())]
        for words, extra in told:
            about = (extra or {}).get(OURS)
            if about is None:
                continue
            if not isinstance(about, dict) or "author" not in about:
                raise DataError(f"step {step.step_id}: extra.{OURS} says nothing of an author")
            names = [_name(step, source.path) for source in images_of(words)]
            yield Message(text_of(words), names, about, metrics=step.metrics)


def _name(step: AtifStep, path: str) -> str:
    folder, _, name = path.rpartition("/")
    if folder != SHOWN_IMAGES:
        raise DataError(f"step {step.step_id}: its image {path[:80]} is not in {SHOWN_IMAGES}/")
    return name


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
    return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))
