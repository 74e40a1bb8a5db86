"""A verifier that re-examines: how often does the model keep its answer in a second turn?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.episode import Observation
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Finish, Group
from selfverify.policy.decoding import Sample
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.policy import Policy
from selfverify.rollouts.conversation import said_of
from selfverify.rollouts.score_reading import with_images
from selfverify.selection.rules import box_iou
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Scores
from selfverify.verifiers.by_policy import Asked, mean_of_samples

MAX_NEW_TOKENS = 256
"""The length limit of a second turn."""

SAME_BOX = 0.5
"""IoU above which two boxes count as one answer, as in votes."""


@dataclass(frozen=True, slots=True)
class SecondTurns:
    """The share of K second turns (AdaPO Eq. 1) whose answer is the candidate's own.

    The share estimates π(y₂ = y₁ | q, y₁, x). It says something only for a policy that keeps right answers
    (low M₁→₀) and changes wrong ones (M₀→₁): look at the policy's M₀→₁ first. A policy that repeats whatever
    it said gives every candidate 1, and a choice by such scores is random. Second turns that were cut off or
    cannot be read are left out. A candidate with only such second turns has no score, nor has one that was
    cut off itself.

    Args:
        policy: Writes the second turns.
        task: Reads their answers.
        words: The request that opens a second turn.
        repeats: K, the number of second turns per candidate.
        name: The name that the scores are stored under.
    """

    policy: Policy
    task: Task
    words: str = SECOND_TURN
    repeats: int = 4
    name: str = "turns"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`. Every conversation is prefilled once for its K second turns."""
        asked: Asked = []
        writer = ReplyEncoder(self.policy.encoder)
        encoded = self.policy.encode([group.problem for group in groups])
        for b, (group, prompt) in enumerate(zip(groups, encoded, strict=True)):
            request = writer.encode(group.problem, Observation(self.task.ask_again(self.words)), 1)
            for g, trajectory in enumerate(group.trajectories):
                readable = trajectory.parsed is not None and trajectory.parsed.answer is not None
                if readable and trajectory.finish == Finish.STOP:
                    said = trajectory.tokens
                    more = [*said, *without_written_end(said, request).tokens]
                    shown = with_images(self.policy, group.problem.id, trajectory, more)
                    asked.append((b, g, self.policy.encoder.extended(prompt, shown)))

        def kept(sample: Sample, group: Group, g: int) -> float | None:
            if sample.finish != Finish.STOP:
                return None
            again = self.task.verdict(
                group.problem, parse_tagged(said_of(self.policy, sample).text, self.task.tags)
            )
            return None if again.answer is None else self._same(group.trajectories[g].parsed, again)

        return mean_of_samples(self.policy, groups, asked, self.repeats, MAX_NEW_TOKENS, kept)

    def _same(self, first: Verdict, second: Verdict) -> bool:
        if self.task.kind == "continuous":
            return bool(box_iou(first.answer, second.answer) > SAME_BOX)
        return first.key == second.key
