"""A conversation that goes on from a point in the middle of one that has been held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import content_parts
from selfverify.core.trajectory import Finish
from selfverify.rollouts.episode_around import EpisodeWrapper
from selfverify.rollouts.noted import KeepImage, Message, noted_content


class ResumedEpisode(EpisodeWrapper):
    """An episode to which the first turns of a conversation are said before the policy speaks.

    What it replies to them has to be what was replied then: what comes after would belong to another
    conversation otherwise.

    Args:
        inner: The episode of the problem as it was first asked.
        told: The messages of these turns and the replies to them.
        keep: Names images.
    """

    def __init__(self, inner: Episode, told: Sequence[Message], keep: KeepImage) -> None:
        super().__init__(inner)
        self.told, self.keep = told, keep
        self.turns = sum(message["role"] == "assistant" for message in told)

    def reset(self) -> Observation | None:
        """See `Episode`.

        Raises:
            DataError: The conversation cannot be held again as it was.
        """
        self.inner.reset()
        turn, reply = 0, Observation()
        for message in self.told:
            if message["role"] == "assistant":
                reply = self.inner.step(PolicyTurn(message["content"], [], Finish.STOP, turn))
                turn += 1
                if reply.done:
                    raise DataError(f"the conversation is over after turn {turn}, and it went on then")
                continue
            shown = noted_content(content_parts(reply.content), reply.images, self.keep)
            if (reply.role, shown) != (message["role"], message["content"]):
                raise DataError(f"turn {turn} is replied to otherwise than it was then")
        return None

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`."""
        return super().step(replace(said, turn=said.turn + self.turns))

    def result(self) -> EpisodeResult:
        """See `Episode`. What is said of single turns is said of the new ones only."""
        ended = super().result()
        lost = [turn - self.turns for turn in ended.lost_turns if turn >= self.turns]
        return replace(ended, turns=ended.turns[self.turns :], lost_turns=lost)
