"""`Sampler`, which takes the policy's turns in a rollout, and the values that pass between it and the
loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from PIL.Image import Image

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.problem import Problem
from selfverify.core.tags import token_ends
from selfverify.core.trajectory import OBSERVATION, Finish, SampleIndex, Segment

if TYPE_CHECKING:  # other engines hold conversations without our models
    from selfverify.policy.decoding import Sample
    from selfverify.policy.encoding import Prompt


class ContextFull(DataError):
    """A conversation has reached the limit of its tokens.

    Args:
        message: The limit.
        tokens: The conversation's tokens before what did not fit; None if they are not known.
    """

    def __init__(self, message: str, tokens: int | None = None) -> None:
        super().__init__(message)
        self.tokens = tokens


@dataclass(slots=True)
class Encoded:
    """An observation as the policy reads it.

    Args:
        tokens: Its tokens with those that the chat template adds; empty where a server keeps them to itself.
        text: The same as text, with one slot for each image.
        images: The images as they are kept.
    """

    tokens: list[int]
    text: str
    images: list[Image] = field(default_factory=list)


@dataclass(slots=True)
class SampledTurn:
    """A turn of the policy.

    Args:
        turn: The turn as the episode gets it: a copy, as nothing it does may reach what is learnt.
        segment: The whole turn as it is kept, in no channel yet.
        ends: For each token of the segment the place in its text where it ends.
        full: The limit that has cut the turn off; None if none has.
    """

    turn: PolicyTurn
    segment: Segment
    ends: Sequence[int]
    full: ContextFull | None = None


def sampled_turn(tokenizer: Any, sample: Sample) -> SampledTurn:
    """Return a sample as a turn of a conversation."""
    text, ends = token_ends(tokenizer, sample.tokens)
    segment = Segment(OBSERVATION, sample.tokens, sample.logprobs, text, finish=sample.finish)
    if sample.finish == Finish.STOP:
        text = text[: ends[-2] if len(ends) > 1 else 0]  # without the token that ends it
    return SampledTurn(PolicyTurn(text, list(sample.tokens), sample.finish, 0), segment, ends)


class Sampler(Protocol):
    """Takes the policy's turns in all conversations of a rollout.

    Attributes:
        lock_step: Whether all conversations that go on are sampled in one call: a batch on a GPU. The members
            of a batch then depend on the conversations alone, never on the clock.
        at_once: How many groups are begun at the same time where the rollout's limits do not say how many
            conversations; None for all.
    """

    lock_step: bool
    at_once: int | None

    @property
    def outage(self) -> SelfVerifyError | None:
        """Why nothing can be said any more for now; None while all goes well."""

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The encoded problems, for the trainer; empty where nothing is encoded here."""

    def session(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> AbstractContextManager[None]:
        """Hold what conversations about the problems need, until the block is left.

        Raises:
            DataError: A problem cannot be encoded.
        """

    def check(self, problem: Problem, expected: Sequence[Observation]) -> None:
        """Refuse observations that the policy could not be shown, before anything is sampled.

        Raises:
            ConfigError: The chat template cannot show one.
        """

    def open(self, indices: Sequence[SampleIndex]) -> None:
        """Begin conversations at their prompts, also those that have begun before."""

    def observe(
        self, shown: Mapping[SampleIndex, Observation | None]
    ) -> Mapping[SampleIndex, Encoded | DataError | None]:
        """Show observations to the policy; None stands for a conversation that begins without one.

        Returns:
            For each the tokens that were shown, or why they cannot be (`ContextFull` where they do not fit);
            None for nothing.
        """

    def say(
        self, turns: Mapping[SampleIndex, int]
    ) -> Mapping[tuple[SampleIndex, ...], Future[Mapping[SampleIndex, SampledTurn]]]:
        """Let the policy speak in some conversations.

        Args:
            turns: By conversation how often the policy has spoken before, turns that were undone included.
                With the problem's seed and the sample's place in its group it decides what is drawn.

        Returns:
            For each request the conversations that it is about, and what is said in them. A `DataError` ends
            them (`ContextFull`: with what was said), and an error that is an `outage` breaks them off.
        """

    def undo(self, indices: Sequence[SampleIndex]) -> None:
        """Take conversations back to before what was shown last, or to the prompt if nothing was.

        A second call without anything shown in between changes nothing.
        """

    def close(self, indices: Sequence[SampleIndex]) -> Mapping[SampleIndex, Future[float | None]]:
        """Forget conversations in which nothing is said any more.

        Returns:
            The expected scores behind what was said last, where only a server can read them.
        """
