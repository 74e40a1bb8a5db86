"""Verifiers give candidates their scores.

A verifier reads whole groups and returns one score per trajectory, or None where it has no opinion. Scores
are in [0, 1], and higher is better; only `policy_verifiers.TrajectoryRatio` has scores of any size.
Anything with a name and a ``score`` method fulfils the protocol: a policy, a client of a server, a reward
model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from selfverify.core.errors import DataError, ServerError
from selfverify.core.tags import SCORE_TAG
from selfverify.core.trajectory import Group, Trajectory
from selfverify.rollouts.score_reading import answer_segment

logger = logging.getLogger(__name__)

Scores = list[list[float | None]]
OPENING, CLOSING = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"

_CLOSED = re.compile(r"</(?!s>)[a-z_]+>")
"""A closing tag; ``</s>`` is how some models end."""


class Verifier(Protocol):
    """Something that scores trajectories."""

    @property
    def name(self) -> str:
        """The name that its scores are stored under."""

    def score(self, groups: Sequence[Group]) -> Scores:
        """Return one list per group with one score per trajectory, None for a trajectory without a score."""


def verify(groups: Sequence[Group], verifier: Verifier) -> Scores:
    """Score ``groups``, keep the scores in each trajectory's ``scores[verifier.name]``, and return them.

    Raises:
        DataError: The verifier returned another number of scores than there are trajectories.
    """
    scores = verifier.score(groups)
    if [len(row) for row in scores] != [len(group.trajectories) for group in groups]:
        raise DataError(f"verifier {verifier.name} returned another number of scores than it got answers")
    for group, row in zip(groups, scores, strict=True):
        for trajectory, score in zip(group.trajectories, row, strict=True):
            if score is not None:
                trajectory.scores[verifier.name] = score
    return scores


def score_groups(groups: Sequence[Group], verifier: Verifier | None) -> None:
    """Score candidates. If a server fails, they have no scores: that is better than no candidates."""
    if verifier is None:
        return
    try:
        verify(groups, verifier)
    except ServerError as error:
        logger.warning("the verifier %s failed (%d, %s)", verifier.name, error.status, error.code)


def no_scores(groups: Sequence[Group]) -> Scores:
    """Return None for every trajectory, to be filled in."""
    return [[None] * len(group.trajectories) for group in groups]


def answers(groups: Sequence[Group]) -> Iterator[tuple[int, int, str]]:
    """Yield the places of group and trajectory, and the text up to the score, of every readable answer."""
    for b, group in enumerate(groups):
        for g, trajectory in enumerate(group.trajectories):
            readable = trajectory.parsed is not None and trajectory.parsed.answer is not None
            if readable and (text := _answer_text(trajectory)):
                yield b, g, text


def _answer_text(trajectory: Trajectory) -> str:
    """The answer without what follows its last tag: the opened score, or the token that ended it."""
    text = answer_segment(trajectory).text.removesuffix(OPENING)
    ends = [match.end() for match in _CLOSED.finditer(text)]
    return text[: ends[-1]] if ends else text
