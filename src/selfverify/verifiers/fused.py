"""The verifier that adds an answer's log-probability to its soft score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.trajectory import Group
from selfverify.rollouts.score_reading import answer_logprob
from selfverify.selection.calibration import Fusion
from selfverify.verifiers.base import Scores, Verifier


@dataclass(frozen=True, slots=True)
class Fused:
    """A `Fusion` of another verifier's scores, `Soft` ones, with the log-probabilities of the answers.

    An answer without a score, or sampled by an engine that gave no log-probabilities, has none.
    """

    scores: Verifier
    fusion: Fusion
    name: str = "fused"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`."""
        return [
            [self.fusion.of(s, answer_logprob(t)) for s, t in zip(row, group.trajectories, strict=True)]
            for row, group in zip(self.scores.score(groups), groups, strict=True)
        ]
