"""Traces as data: what a model said and was shown while it looked (VTS-V Eq. 1's τ), checked and counted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from selfverify.core.problem import content_parts, joined_parts
from selfverify.core.trajectory import ANSWER
from selfverify.rollouts.wrappers import Message
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.tool_episode import TOOL_CALLS
from selfverify.visual.config import PIXELS_PER_TOKEN

BYTES_PER_TOKEN = 4
"""Of text, as an estimate."""
ROLES = ("system", "user", "assistant", "tool")
Decider = Literal["rules", "judge"]
"""Who says whether an answer is right: the task's rules, or a model."""


@dataclass(slots=True)
class VisualTrace:
    """One conversation.

    Args:
        id: Its name.
        problem: The problem's id. Traces of one problem have the same.
        messages: ``role`` and ``content``: a text, or parts of type ``text`` and ``image``, the latter with
            the name of a file.
        cuts: For each message of the assistant its channels, as `Observation.channels` has them.
        rewards: The rewards of its end.
        steps: The record of each step (`VisualStep`).
        finish: How the last turn ended.
        lost: Why it broke off; empty where it did not.
        source: How it was made: ``sampled``, ``branched`` from another trace, ``induced`` to be wrong, or
            ``hurried`` to an answer.
        category: The problem's.
        task: The task's name.
        told: How many messages were given to who spoke, the question among them.
        answer: The answer as it was read from the last turn; None where none could be read.
        decider: Who has said whether the answer is right: the task's ``rules``, or a model as ``judge``.
    """

    id: str
    problem: str
    messages: list[Message]
    cuts: list[list[list[Any]]] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    lost: str = ""
    source: str = "sampled"
    category: str = ""
    task: str = ""
    told: int = 1
    answer: str | None = None
    decider: Decider = "rules"

    @property
    def correct(self) -> bool:
        """Whether the answer is right and whole."""
        return worth_imitating(self.rewards)

    @property
    def wrong(self) -> bool:
        """Whether the answer is not right; one that is right in another form is neither."""
        return not self.rewards.get("correct", 0.0) > 0

    @property
    def turns(self) -> list[Message]:
        """The model's turns: H steps and the answer."""
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def images(self) -> list[str]:
        """The names of all images in order."""
        return [part["image"] for message in self.messages for part in parts_of(message) if is_image(part)]


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message's content as parts."""
    return content_parts(message["content"])


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part is an image."""
    return part.get("type") == "image"


def flattened(messages: Sequence[Message]) -> list[Message]:
    """Messages with nested lists of parts opened, texts side by side joined, and users' messages merged.

    A message that holds text only has a text as its content.
    """
    found: list[Message] = []
    for message in messages:
        content = message["content"]
        parts = joined_parts(_opened(content)) if isinstance(content, list) else parts_of(message)
        if found and found[-1]["role"] == message["role"] == "user":
            parts = joined_parts([*parts_of(found.pop()), *parts])
        text = not any(map(is_image, parts))
        found.append(
            {
                "role": message["role"],
                "content": "".join(part.get("text", "") for part in parts) if text else parts,
            }
        )
    return found


def _opened(parts: Iterable[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, list):
            found += _opened(part)
        else:
            found.append({"type": "text", "text": part} if isinstance(part, str) else part)
    return found


def estimated_length(messages: Iterable[Message], sizes: Mapping[str, tuple[int, int]]) -> int:
    """Return an estimate of the tokens of messages: a quarter of their bytes, and an image's pixels by 28 x
    28.

    Args:
        messages: The messages.
        sizes: Width and height of images by name.
    """
    tokens = 0
    for message in messages:
        for part in parts_of(message):
            if is_image(part):
                wide, high = sizes[part["image"]]
                tokens += max(wide * high // PIXELS_PER_TOKEN, 1)
            else:
                tokens += -(-len(part["text"].encode("utf-8", "replace")) // BYTES_PER_TOKEN)
    return tokens


class Curation:
    """Checks the traces of one problem after another, and counts what is dropped by its reason.

    VTS-V §4.1 flattens nested structures, merges turns that belong together, and drops what is malformed,
    trivial, too long or wrong. Here every trace that is dropped has a reason.

    Args:
        folder: Where images are.
        most_tokens: Longer traces are dropped (§4.1: 20,000; §4.2's released filter for pairs: 10,000).
    """

    def __init__(self, folder: Path, most_tokens: int = 20_000) -> None:
        self.folder, self.most_tokens = folder, most_tokens
        self.dropped: Counter[str] = Counter()
        self.named: dict[str, str] = {}
        """For each reason the first trace that was dropped for it."""
        self._forget()

    def _forget(self) -> None:
        self._sizes: dict[str, tuple[int, int] | None] = {}
        """Of the problem's images that were looked at; None of one that is missing or cannot be read."""
        self._seen: set[str] = set()
        self._asked: dict[str, list[Message]] = {}

    def take(self, traces: Iterable[VisualTrace]) -> list[VisualTrace]:
        """The traces that are kept of one problem's, flattened."""
        self._forget()
        return [trace for trace in traces if not self.drop(trace, self._fault(trace))]

    def drop(self, trace: VisualTrace, reason: str) -> bool:
        """Count a trace that is dropped for a reason; whether there is one."""
        if reason:
            self.dropped[reason] += 1
            self.named.setdefault(reason, trace.id)
        return bool(reason)

    def _fault(self, trace: VisualTrace) -> str:
        """Why a trace is dropped; empty where it is not."""
        if trace.lost:
            return "they broke off"
        if trace.finish != "stop":
            return "their last turn was cut off"
        if fault := malformed(trace):
            return f"malformed: {fault}"
        trace.messages = flattened(trace.messages)
        if not trace.images:
            return "the question shows no image"
        self._sizes |= {name: self._size(name) for name in {*trace.images} - self._sizes.keys()}
        sizes = {name: size for name in trace.images if (size := self._sizes[name]) is not None}
        if sizes.keys() != {*trace.images}:
            return "an image is missing or cannot be read"
        if not trace.rewards.get(TOOL_CALLS):
            return "no tool was used"
        if estimated_length(trace.messages, sizes) > self.most_tokens:
            return f"they are longer than {self.most_tokens:,} tokens"
        first = self._asked.setdefault(trace.problem, trace.messages[:1])
        if trace.messages[:1] != first:
            return "the same problem is asked otherwise"
        same = repr((trace.problem, trace.messages))
        if same in self._seen:
            return "the same was said before"
        self._seen.add(same)
        return ""

    def _size(self, name: str) -> tuple[int, int] | None:
        if Path(name).name != name:  # it leads elsewhere
            return None
        try:
            with Image.open(self.folder / name, formats=("PNG",)) as image:
                image.verify()
                return image.size
        except (OSError, ValueError, SyntaxError):
            return None


def malformed(trace: VisualTrace) -> str:
    """Return the fault of a trace's form; empty where nothing is."""
    for message in trace.messages:
        content = message.get("content")
        opened = _opened(content) if isinstance(content, list) else content
        if fault := malformed_message({**message, "content": opened}):
            return fault
    roles = [message["role"] for message in trace.messages]
    if not roles or roles[0] == "assistant" or roles[-1] != "assistant":
        return "no question at the beginning, or no answer at the end"
    said = [place for place, role in enumerate(roles) if role == "assistant"]
    if any(after == before + 1 for before, after in itertools.pairwise(said)):
        return "two turns without a reply between them"
    if any(not isinstance(turn["content"], str) or not turn["content"].strip() for turn in trace.turns):
        return "a turn is empty or shows images"
    if len(trace.cuts) != len(said):
        return "channels and turns differ in number"
    if [cut[:1] for cut in trace.cuts[-1][:1]] != [[ANSWER]]:
        return "they end without an answer"
    return ""


def malformed_message(message: Mapping[str, Any]) -> str:
    """Return the fault of the form of one message, whose parts are not nested; empty where nothing is."""
    if message.get("role") not in ROLES:
        return "a role is unknown"
    content = message.get("content")
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
            return "a part is neither text nor image"
        if not isinstance(part.get("image" if is_image(part) else "text"), str):
            return "a part is empty"
    return ""
