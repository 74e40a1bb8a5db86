"""Single-turn rollouts: sample G responses, cut them into channels, judge them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.errors import DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.tags import Tagged, channel_lengths, parse_tagged, token_ends
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.scores import read_scores
from selfverify.tasks.base import Judged, Task

logger = logging.getLogger(__name__)

ANSWER, SCORE = "answer", "score"


@dataclass(slots=True)
class Rollout:
    """Groups with the encoded prompts they were sampled from, in the same order."""

    prompts: list[Prompt]
    groups: list[Group]


def read_response(policy: Policy, task: Task, sample: Sample) -> tuple[str, Tagged, int]:
    """The decoded response, what its tags hold, and how many leading tokens are the answer channel."""
    text, ends = token_ends(policy.tokenizer, sample.tokens)
    body = text
    if sample.finish == Finish.STOP:
        body = text[: ends[-2] if len(ends) > 1 else 0]
    tagged = parse_tagged(body, task.tags)
    return text, tagged, channel_lengths(ends, tagged.score_start)


def prepare(policy: Policy, task: Task, samples: Sequence[tuple[Problem, Sample]]) -> None:
    """Let a task whose judging is slow see all answers of a batch at once, before each is judged."""
    task.prepare([(problem, read_response(policy, task, sample)[1]) for problem, sample in samples])


def make_trajectory(policy: Policy, task: Task, problem: Problem, sample: Sample) -> Trajectory:
    """Cut one sample into ``answer`` and ``score`` and reward it.

    Rewards: ``answer`` (the task's, without format), ``correct``, ``answer_format`` and ``score_format``
    (0 or 1), ``score_opened``, the task's ``parts`` and, where it is not the answer's reward, the ``quality``
    that decides contrast. An answer whose tags are malformed earns 0. One that could not be judged
    finishes with ``error``: it takes no part in training, since an outage is not a failure.
    """
    text, tagged, split = read_response(policy, task, sample)
    judged = verdict(task, problem, tagged)
    boundary = tagged.score_start if tagged.score_start is not None else len(text)
    segments = [Segment(ANSWER, sample.tokens[:split], sample.logprobs[:split], text[:boundary])]
    if split < len(sample.tokens):
        segments.append(Segment(SCORE, sample.tokens[split:], sample.logprobs[split:], text[boundary:]))
    segments[-1].finish = Finish.ERROR if judged.unjudged else sample.finish
    segments[0].parsed = judged
    return Trajectory(
        segments,
        scores={"sampled": tagged.score} if tagged.score is not None else {},
        rewards=answer_rewards(tagged, judged),
        parsed=judged,
    )


def answer_rewards(tagged: Tagged, judged: Judged) -> dict[str, float]:
    """A judged answer's rewards by name, as `make_trajectory` lists them."""
    rewards = judged.parts | {
        "answer": judged.reward,
        "correct": float(judged.correct),
        "answer_format": float(tagged.answer_ok),
        "score_format": float(tagged.score_ok),
        "score_opened": float(tagged.score_start is not None),
    }
    return rewards if judged.quality is None else rewards | {"quality": judged.quality}


def verdict(task: Task, problem: Problem, tagged: Tagged) -> Judged:
    """What the task thinks of an answer; one whose tags are malformed earns nothing."""
    return judge_answer(task, problem, tagged) if tagged.answer_ok else task.unreadable(problem)


def judge_answer(task: Task, problem: Problem, tagged: Tagged) -> Judged:
    """The task's verdict. Where there is none (``unjudged``, or a DataError) the log says for which problem.

    The trajectory's last segment has to finish with ``error`` then.
    """
    try:
        judged = task.judge(problem, tagged)
    except DataError as error:
        judged = Judged(0.0, False, unjudged=str(error))
    if judged.unjudged:
        reason = judged.unjudged
        message = f"problem {problem.id}: an answer could not be judged: {reason}"
        note(logger, "unjudged", message, problem=problem.id, reason=reason)
    return judged


def roll_out(
    policy: Policy, task: Task, problems: Sequence[Problem], seeds: Sequence[int], sampling: SamplingConfig
) -> Rollout:
    """Sample a group for each problem and judge its trajectories."""
    prompts = policy.encode(problems)
    sampled = policy.sample(prompts, sampling, seeds=seeds)
    prepare(policy, task, [(p, sample) for p, row in zip(problems, sampled, strict=True) for sample in row])
    groups = [
        Group(problem, [make_trajectory(policy, task, problem, sample) for sample in samples])
        for problem, samples in zip(problems, sampled, strict=True)
    ]
    return Rollout(prompts, groups)


def answer_segment(trajectory: Trajectory) -> Segment:
    """The segment with the answer that counts: that of the last turn."""
    return [segment for segment in trajectory.segments if segment.channel != SCORE][-1]


def before_score(trajectory: Trajectory) -> list[int] | None:
    """The tokens up to and with ``<score>``; None without a well-formed score, or with one inside a turn."""
    if "sampled" not in trajectory.scores or trajectory.segments[-1].channel not in (ANSWER, SCORE):
        return None
    return [token for segment in trajectory.segments if segment.channel != SCORE for token in segment.tokens]


def read_rollout(policy: Policy, rollout: Rollout, temperature: float = 1.0) -> None:
    """Read the score distribution behind every answer whose score is well formed.

    It becomes ``parsed`` of the score's segment, its decodings ``scores["greedy"]`` and ``["soft"]``.
    """
    prefixes = [[before_score(t) for t in group.trajectories] for group in rollout.groups]
    readings = read_scores(policy, rollout.prompts, prefixes, temperature)
    for group, row in zip(rollout.groups, readings, strict=True):
        for trajectory, reading in zip(group.trajectories, row, strict=True):
            if reading is not None:
                trajectory.segments[-1].parsed = reading
                trajectory.scores |= {"greedy": reading.greedy, "soft": reading.soft}
