"""Segments of tokens, trajectories of segments, groups of trajectories: all that follows a prompt.

Training is *roll out -> credit -> learn*; inference is *roll out -> select*. Groups pass between these
stages, and a method tells the trainer its `Credit` of a group: for each channel, what its tokens are to
learn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from PIL.Image import Image

from selfverify.core.problem import Problem

if TYPE_CHECKING:
    import torch

Author = Literal["policy", "environment"]


SampleIndex = tuple[int, int]
"""A sample: its problem's place in the batch, and its own in the group."""


class Finish(StrEnum):
    """The way in which a turn or a trajectory ended."""

    STOP = "stop"
    """By itself."""
    LENGTH = "length"
    """Cut off by its length limit."""
    ERROR = "error"
    """Its episode failed or could not be judged: it is neither right nor wrong."""


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
        channel: The part of a trajectory that it belongs to, by which credit finds it: ``answer``, ``score``,
            ``turn_1``, ``observation``, ...
        tokens: Token ids, as sampled (never re-tokenised text).
        logprobs: Sampling log-probabilities, one per token; empty where there are none.
        text: The decoded tokens, with one slot for each image.
        author: The writer; the environment's tokens are never trained.
        turn: Turn or step number, from 0.
        finish: How the turn ended; None for a segment inside a turn.
        parsed: The task's reading of it.
        images: Images that the environment put in, in the order of their placeholders.
        values: Numbers that were measured while it was said (`PolicyTurn.values`), by name.
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

    @property
    def taught_channels(self) -> list[str]:
        """The channels of the policy's tokens in their order, but for `CONTEXT`."""
        own = [s.channel for t in self.trajectories for s in t.segments if s.author == "policy"]
        return [channel for channel in dict.fromkeys(own) if channel != CONTEXT]


def valid_trajectories(group: Group, drop_truncated: bool) -> torch.Tensor:
    """Return ``[G]`` bool: which of a group's trajectories take part in its statistics.

    A trajectory without a verdict takes no part; with ``drop_truncated`` nor does one that was cut off.
    """
    import torch  # so that environments and commands, which need types only, load without it

    return torch.tensor(
        [t.finish != Finish.ERROR and not (drop_truncated and t.truncated) for t in group.trajectories]
    )


@dataclass(slots=True)
class Alternatives:
    """Tokens at which every alternative gets an advantage, not only the one that was sampled.

    M such tokens of a group's trajectories with up to K alternatives; padding has probability 0.

    Args:
        rows: ``[M]`` which trajectory.
        places: ``[M]`` which of the trajectory's tokens.
        tokens: ``[M, K]`` the alternatives' ids.
        probability: ``[M, K]`` under the policy that sampled, normalised over the alternatives.
        advantage: ``[M, K]``, its mean under ``probability`` 0.

    Their loss is divided by the number of trajectories only, also where other tokens have another
    denominator: how much a score should learn does not depend on the length of a response.
    """

    rows: torch.Tensor
    places: torch.Tensor
    tokens: torch.Tensor
    probability: torch.Tensor
    advantage: torch.Tensor


@dataclass(slots=True)
class Credit:
    """The lesson of one channel of a group's trajectories.

    Args:
        channel: The channel whose tokens receive it.
        advantage: ``[G]``. Exactly 0 where there is nothing to learn.
        kl_coef: Coefficient of the KL term, a number or ``[G]``.
        weight: Loss weight, a number or ``[G]``.
        valid: ``[G]`` bool; an invalid trajectory (an outage, a cut-off) takes no part at all.
        choices: Tokens of the channel that learn from all their alternatives; at those ``advantage`` is not
            used.
        holds: Whether the KL term counts also in a group in which nothing is to be learnt.
    """

    channel: str
    advantage: torch.Tensor
    kl_coef: float | torch.Tensor = 0.0
    weight: float | torch.Tensor = 1.0
    valid: torch.Tensor | None = None
    choices: Alternatives | None = None
    holds: bool = False

    @property
    def acts(self) -> bool:
        """Whether tokens are moved: by an advantage, or by the KL term alone."""
        coefficients = self.kl_coef
        held = bool(coefficients) if isinstance(coefficients, float | int) else bool(coefficients.any())
        return self.teaches or (self.holds and held)

    @property
    def teaches(self) -> bool:
        """Whether any advantage is not 0."""
        return bool(self.advantage.any()) or (self.choices is not None and bool(self.choices.advantage.any()))
