"""What follows a problem's prompt: segments of tokens, trajectories of segments, groups of trajectories.

Training is *roll out -> credit -> learn*; inference is *roll out -> select*. Groups are what passes between
these stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from PIL.Image import Image

from selfverify.core.problem import Problem

Author = Literal["policy", "environment"]


class Finish(StrEnum):
    """How something that was written ended."""

    STOP = "stop"
    """By itself."""
    LENGTH = "length"
    """Cut off by its length limit."""
    ERROR = "error"
    """It was lost, or could not be judged: neither right nor wrong."""


ANSWER, SCORE = "answer", "score"
"""Channels of a single answer and of the score behind an answer."""
TURN_1, TURN_2 = "turn_1", "turn_2"
"""Channels of a first answer and of its re-examination."""
OBSERVATION = "observation"
"""Channel of everything the environment wrote. Never trained."""
CONTEXT = "context"
"""Channel of what a demonstration shows as the policy's words without teaching it. Never trained."""
TOKENS = "tokens"
"""The value (`Segment.values`) that counts the tokens of a turn whose ids a server keeps to itself."""


@dataclass(slots=True)
class Segment:
    """A run of tokens with one author and one channel.

    Args:
        channel: What credit applies to it: ``answer``, ``score``, ``turn_1``, ``observation``, ...
        tokens: Token ids, as sampled (never re-tokenised text).
        logprobs: Sampling log-probabilities, one per token; empty where there are none.
        text: The decoded tokens, with one slot for each image.
        author: Who wrote it; the environment's tokens are never trained.
        turn: Turn or step number, from 0.
        finish: How the turn ended; None for a segment inside a turn.
        parsed: What the task's parser made of it.
        images: Images that the environment put in, in the order of their placeholders.
        values: What was measured of it while it was said (`PolicyTurn.values`), by name.
    """

    channel: str
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    author: Author = "policy"
    turn: int = 0
    finish: Finish | None = None
    parsed: Any = None
    images: list[Image] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Trajectory:
    """The segments that follow a problem's prompt, with scores by verifier and rewards by name."""

    segments: list[Segment]
    scores: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    parsed: Any = None

    @property
    def tokens(self) -> list[int]:
        """Return all token ids in order."""
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def written(self) -> int:
        """Return the number of tokens that the policy wrote."""
        own = [segment for segment in self.segments if segment.author == "policy"]
        return sum(len(segment.tokens) or int(segment.values.get(TOKENS, 0)) for segment in own)

    @property
    def logprobs(self) -> list[float]:
        """Return all sampling log-probabilities in order; none unless every segment has them."""
        if any(len(s.logprobs) != len(s.tokens) for s in self.segments):
            return []
        return [value for segment in self.segments for value in segment.logprobs]

    @property
    def text(self) -> str:
        """Return all segments' text in order."""
        return "".join(segment.text for segment in self.segments)

    @property
    def finish(self) -> Finish | None:
        """Return how the last segment ended."""
        return self.segments[-1].finish if self.segments else Finish.ERROR

    @property
    def lost(self) -> bool:
        """Return whether the episode failed, so that nothing is known of how the conversation ended."""
        return self.finish == Finish.ERROR and self.parsed is None and not self.rewards

    @property
    def truncated(self) -> bool:
        """Return whether any turn was cut off by its length limit."""
        return any(segment.finish == Finish.LENGTH for segment in self.segments)

    def channel_mask(self, channels: Iterable[str]) -> list[bool]:
        """Return for each token whether the policy wrote it in one of ``channels``."""
        wanted = set(channels)
        return [
            segment.channel in wanted and segment.author == "policy"
            for segment in self.segments
            for _ in segment.tokens
        ]


@dataclass(slots=True)
class Group:
    """One problem and the G trajectories sampled for it, in training step ``step`` (from 0)."""

    problem: Problem
    trajectories: list[Trajectory]
    step: int = 0
