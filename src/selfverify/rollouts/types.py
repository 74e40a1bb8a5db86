"""The one data model: problems, segments, trajectories, groups and credits.

Training is *roll out -> credit -> learn*; inference is *roll out -> select*. Everything that passes
between those stages is one of the types below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from PIL.Image import Image

Author = Literal["policy", "environment"]
Finish = Literal["stop", "length", "error"]

OBSERVATION = "observation"
"""Channel of everything the environment wrote. Never trained."""


@dataclass(slots=True)
class Problem:
    """A question with its images and the target that answers are judged by.

    Args:
        id: Stable and unique inside its task; errors and stored samples name it.
        messages: Chat messages in the Hugging Face form. An image stands as ``{"type": "image"}`` in
            a message's content list, in the order of ``images``.
        images: The images that the placeholders refer to.
        target: What the task's reward compares an answer with.
        meta: Anything a report or a demonstration needs (the digits shown, the seed, ...).
    """

    id: str
    messages: list[dict[str, Any]]
    images: list[Image] = field(default_factory=list)
    target: Any = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Segment:
    """A run of tokens with one author and one channel.

    Args:
        channel: What credit applies to it: ``answer``, ``score``, ``turn_1``, ``observation``, ...
        tokens: Token ids, as sampled (never re-tokenised text).
        logprobs: Sampling log-probabilities, one per token; empty where there are none.
        text: The decoded tokens.
        author: Who wrote it; the environment's tokens are never trained.
        turn: Turn or step number, from 0.
        finish: How it ended: ``stop``, ``length`` (cut off) or ``error``; None inside a turn.
        parsed: What the task's parser made of it.
        images: Images that the environment put in, in the order of their placeholders.
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


@dataclass(slots=True)
class Trajectory:
    """The segments that follow a problem's prompt, with scores by verifier and rewards by name."""

    segments: list[Segment]
    scores: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    parsed: Any = None

    @property
    def tokens(self) -> list[int]:
        """All token ids in order."""
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def written(self) -> int:
        """How many tokens the policy wrote."""
        return sum(len(segment.tokens) for segment in self.segments if segment.author == "policy")

    @property
    def logprobs(self) -> list[float]:
        """All sampling log-probabilities in order; empty unless every segment has them."""
        if any(len(s.logprobs) != len(s.tokens) for s in self.segments):
            return []
        return [value for segment in self.segments for value in segment.logprobs]

    @property
    def text(self) -> str:
        """All segments' text in order."""
        return "".join(segment.text for segment in self.segments)

    @property
    def finish(self) -> Finish | None:
        """How the last segment ended."""
        return self.segments[-1].finish if self.segments else "error"

    @property
    def truncated(self) -> bool:
        """True when any turn was cut off by its length limit."""
        return any(segment.finish == "length" for segment in self.segments)

    def channel_mask(self, channels: Iterable[str]) -> list[bool]:
        """One flag per token: True where the policy wrote it in one of ``channels``."""
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


def valid_trajectories(group: Group, drop_truncated: bool) -> torch.Tensor:
    """``[G]`` bool: trajectories that take part in this group's statistics.

    Those without a verdict never do; with ``drop_truncated`` those of which a turn was cut off don't either.
    """
    return torch.tensor(
        [t.finish != "error" and not (drop_truncated and t.truncated) for t in group.trajectories]
    )


@dataclass(slots=True)
class Choices:
    """Tokens at which every alternative gets an advantage, not only the one that was sampled.

    M such tokens of a group's trajectories with up to K alternatives; padding has probability 0.

    Args:
        rows: ``[M]`` which trajectory.
        places: ``[M]`` which of the trajectory's tokens.
        tokens: ``[M, K]`` the alternatives' ids.
        probability: ``[M, K]`` under the policy that sampled, normalised over the alternatives.
        advantage: ``[M, K]``, its mean under ``probability`` 0.

    Unlike a token's loss theirs is divided by the number of trajectories only, whatever the denominator: how
    many tokens a response or a score has says nothing about how much its score should learn.
    """

    rows: torch.Tensor
    places: torch.Tensor
    tokens: torch.Tensor
    probability: torch.Tensor
    advantage: torch.Tensor


@dataclass(slots=True)
class Credit:
    """What one channel of a group's trajectories is to learn.

    Args:
        channel: The channel whose tokens receive it.
        advantage: ``[G]``. Exactly 0 where there is nothing to learn.
        kl_coef: Coefficient of the KL term, a number or ``[G]``.
        weight: Loss weight, a number or ``[G]``.
        valid: ``[G]`` bool; an invalid trajectory (an outage, a cut-off) takes no part at all.
        choices: Tokens of the channel that learn from all their alternatives; at those ``advantage`` is not
            used.
    """

    channel: str
    advantage: torch.Tensor
    kl_coef: float | torch.Tensor = 0.0
    weight: float | torch.Tensor = 1.0
    valid: torch.Tensor | None = None
    choices: Choices | None = None

    @property
    def teaches(self) -> bool:
        """Whether any advantage is not 0."""
        return bool(self.advantage.any()) or (self.choices is not None and bool(self.choices.advantage.any()))
