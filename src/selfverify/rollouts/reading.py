"""Reading the scores behind a rollout's answers in all ways: as written, the likeliest, the expected."""

from __future__ import annotations

from selfverify.core.trajectory import ANSWER, SCORE, Segment, Trajectory
from selfverify.policy.continuations import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.rollouts.converse import Rollout


def answer_segment(trajectory: Trajectory) -> Segment:
    """The segment with the answer that counts: the policy's last; an empty one where it has said nothing."""
    own = [s for s in trajectory.segments if s.author == "policy" and s.channel != SCORE]
    return own[-1] if own else Segment(ANSWER, [])


def before_score(trajectory: Trajectory) -> list[int] | None:
    """The tokens up to and with ``<score>``; None without a well-formed score, or with one inside a turn."""
    last = trajectory.segments[-1]
    if "sampled" not in trajectory.scores or last.channel not in (ANSWER, SCORE):
        return None
    # Scores of earlier turns are part of the conversation.
    before = trajectory.segments[:-1] if last.channel == SCORE else trajectory.segments
    return [token for segment in before for token in segment.tokens]


def read_rollout(policy: Policy, rollout: Rollout, temperature: float = 1.0) -> None:
    """Read the score distribution behind every answer whose score is well formed.

    It becomes ``parsed`` of the score's segment, its decodings ``scores["greedy"]`` and ``["soft"]``.
    """
    prefixes = [[_shown(policy, group.problem.id, t) for t in group.trajectories] for group in rollout.groups]
    readings = read_scores(policy, rollout.prompts, prefixes, temperature)
    for group, row in zip(rollout.groups, readings, strict=True):
        for trajectory, reading in zip(group.trajectories, row, strict=True):
            if reading is not None:
                trajectory.segments[-1].parsed = reading
                trajectory.scores |= {"greedy": reading.greedy, "soft": reading.soft}


def _shown(policy: Policy, name: str, trajectory: Trajectory) -> Continuation | None:
    """What stands before the score, with the images that the environment showed."""
    tokens = before_score(trajectory)
    if tokens is None:
        return None
    pictures = [picture for segment in trajectory.segments for picture in segment.images]
    return Continuation(tokens, [policy.encoder.image(picture, name, True) for picture in pictures])
