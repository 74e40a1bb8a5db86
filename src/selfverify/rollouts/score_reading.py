"""The score behind each answer of a rollout: as written, the likeliest, the expected."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.score_tokens import ScoreReading, decimals_of
from selfverify.core.tags import SCORE_TAG
from selfverify.core.trajectory import ANSWER, SCORE, Segment, Trajectory
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.rollouts.rollout import Rollout

OPENING, CLOSING = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"


def answer_segment(trajectory: Trajectory) -> Segment:
    """The segment with the answer that counts: the policy's last; an empty one where it has said nothing."""
    own = [s for s in trajectory.segments if s.author == "policy" and s.channel != SCORE]
    return own[-1] if own else Segment(ANSWER, [])


def answer_logprob(trajectory: Trajectory) -> float | None:
    """The mean log-probability of the answer's tokens, without its score's; None where they have none."""
    logprobs = answer_segment(trajectory).logprobs
    return sum(logprobs) / len(logprobs) if logprobs else None


def before_score(trajectory: Trajectory) -> list[int] | None:
    """The tokens up to and with ``<score>``; None without a well-formed score, or with one inside a turn."""
    last = trajectory.segments[-1]
    if "sampled" not in trajectory.scores or last.channel not in (ANSWER, SCORE):
        return None
    # Scores of earlier turns are part of the conversation.
    before = trajectory.segments[:-1] if last.channel == SCORE else trajectory.segments
    return [token for segment in before for token in segment.tokens]


def written_score(trajectory: Trajectory) -> str:
    """Return the text between the tags of a trajectory's score."""
    return trajectory.segments[-1].text.rpartition(OPENING)[2].partition(CLOSING)[0]


def read_rollout_scores(
    policy: Policy, rollout: Rollout, temperature: float = 1.0, as_written: bool = False
) -> None:
    """Read the score distribution behind every answer whose score is well formed.

    With ``as_written`` a score of two decimals is read as an expectation over 0.00, 0.01, ..., 1.00, one of
    one decimal over tenths, and a 0 without decimals counts: a policy that writes 0.85 says more than tenths
    can hold. The reading of an answer depends on that answer alone. Without it, as in training, all are read
    in tenths.

    It becomes ``parsed`` of the score's segment, its decodings ``scores["greedy"]`` and ``["soft"]``.
    """
    prefixes = [[_shown(policy, group.problem.id, t) for t in group.trajectories] for group in rollout.groups]
    forms = [
        [decimals_of(written_score(t)) if as_written else 1 for t in group.trajectories]
        for group in rollout.groups
    ]
    for decimals in sorted({form for row in forms for form in row}):
        asked = [
            [p if form == decimals else None for p, form in zip(row, own, strict=True)]
            for row, own in zip(prefixes, forms, strict=True)
        ]
        readings = read_scores(policy, rollout.prompts, asked, temperature, decimals, as_written)
        for group, found in zip(rollout.groups, readings, strict=True):
            for trajectory, reading in zip(group.trajectories, found, strict=True):
                keep_reading(trajectory, reading)


def keep_reading(trajectory: Trajectory, reading: ScoreReading | None) -> None:
    """Note the distribution of a trajectory's score, if there is one, as `read_rollout_scores` says."""
    if reading is not None:
        trajectory.segments[-1].parsed = reading
        trajectory.scores |= {"greedy": reading.greedy, "soft": reading.soft}


def _shown(policy: Policy, name: str, trajectory: Trajectory) -> Continuation | None:
    """Return the part before the score, with the images that the environment showed."""
    tokens = before_score(trajectory)
    return None if tokens is None else with_images(policy, name, trajectory, tokens)


def with_images(policy: Policy, name: str, trajectory: Trajectory, tokens: Sequence[int]) -> Continuation:
    """Tokens of a trajectory, with the images that the environment has shown in it.

    Args:
        policy: Encodes the images.
        name: The problem's id, which errors name.
        trajectory: Has the images.
        tokens: Its tokens, up to anywhere behind the last image.

    Raises:
        DataError: An image cannot be encoded.
    """
    pictures = [picture for segment in trajectory.segments for picture in segment.images]
    if not pictures:
        return Continuation(tokens)
    images = [policy.encoder.image(picture, name, True) for picture in pictures]
    family, tokenizer = policy.loaded.family, policy.tokenizer
    [slot, *runs] = tokenizer(
        [family.slot(policy.model, tokenizer), *(image.text for image in images)], add_special_tokens=False
    )["input_ids"]
    return Continuation(tokens, images, _unexpanded(tokens, runs, slot), pictures)


def _unexpanded(tokens: Sequence[int], runs: Sequence[list[int]], slot: list[int]) -> list[int] | None:
    """``tokens`` with one slot in place of each image's run; None where a run is not found as it is."""
    left, found = list(tokens), list[int]()
    for run in runs:
        starts = (at for at in range(len(left) - len(run) + 1) if left[at : at + len(run)] == run)
        if (start := next(starts, None)) is None:
            return None
        found += [*left[:start], *slot]
        left = left[start + len(run) :]
    return found + left
