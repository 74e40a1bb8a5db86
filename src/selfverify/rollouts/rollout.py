"""Rollouts: sample G responses of one or two turns to each problem, cut them into channels, judge them.

Two turns are an answer, a fixed request to evaluate it, and the answer to that (AdaPO Eq. 1). More turns of
the same kind can follow (STaR).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.errors import DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.tags import Tagged, channel_lengths, parse_tagged, token_ends
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Segment, Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.scores import read_scores
from selfverify.policy.turns import Turns, follow_up, inserted_tokens, longer_prompt, sample_turns
from selfverify.tasks.base import Judged, Task

logger = logging.getLogger(__name__)

ANSWER, SCORE = "answer", "score"
TURN_1, TURN_2 = "turn_1", "turn_2"


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


def _turn(
    policy: Policy, task: Task, problem: Problem, sample: Sample, turn: int, split: bool = False
) -> tuple[list[Segment], Tagged, Judged]:
    """A turn's segments: one, or with ``split`` another one of channel ``score`` where a score was opened."""
    text, tagged, boundary = read_response(policy, task, sample)
    judged = verdict(task, problem, tagged)
    if not split:
        boundary = len(sample.tokens)
    start = len(text) if tagged.score_start is None or not split else tagged.score_start
    segments = [
        Segment(f"turn_{turn + 1}", sample.tokens[:boundary], sample.logprobs[:boundary], text[:start])
    ]
    if boundary < len(sample.tokens):
        segments.append(Segment(SCORE, sample.tokens[boundary:], sample.logprobs[boundary:], text[start:]))
    for segment in segments:
        segment.turn = turn
    segments[0].parsed = judged
    segments[-1].finish = Finish.ERROR if judged.unjudged else sample.finish
    return segments, tagged, judged


def _observation(policy: Policy, inserted: list[int], turn: int) -> Segment:
    words: str = policy.tokenizer.decode(inserted, clean_up_tokenization_spaces=False)
    # The environment's tokens have no probability; nothing is trained on them, so that 0 does no harm.
    return Segment(OBSERVATION, inserted, [0.0] * len(inserted), words, author="environment", turn=turn)


def make_two_turn_trajectory(
    policy: Policy, task: Task, problem: Problem, turns: Turns, split_score: bool = False
) -> Trajectory:
    """Segments ``turn_1``, ``observation`` (what was inserted) and ``turn_2``, with their rewards.

    Rewards: ``correct_1`` and ``correct`` (the first and the second answer; a trajectory without a second one
    ends wrong); of the second answer ``answer``, ``quality`` and the task's ``parts`` as in one turn,
    ``answer_format``, ``score_format`` and ``score_opened``; ``answer_format_1``. A score, where the task
    asks for one, belongs to its turn; with ``split_score`` that of the second turn is a segment ``score`` of
    its own. If one of the answers cannot be judged, the trajectory finishes with ``error``.
    """
    segments, tagged, before = _turn(policy, task, problem, turns.first, 0)
    format_1 = float(tagged.answer_ok)
    if turns.second is None:
        tagged = Tagged()
        after = verdict(task, problem, tagged)
    else:
        segments.append(_observation(policy, turns.inserted, 1))
        second, tagged, after = _turn(policy, task, problem, turns.second, 1, split_score)
        segments += second
    if before.unjudged:
        segments[-1].finish = Finish.ERROR
    return Trajectory(
        segments,
        scores={"sampled": tagged.score} if tagged.score is not None else {},
        rewards=answer_rewards(tagged, after)
        | {"correct_1": float(before.correct), "answer_format_1": format_1},
        parsed=before if before.unjudged else after,
    )


def roll_out(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    second_turn: str | None = None,
    split_score: bool = False,
) -> Rollout:
    """Sample a group of trajectories for each problem and judge its answers.

    Args:
        policy: Samples.
        task: Judges. A task whose judging is slow sees all answers before each is judged (`Task.prepare`).
        problems: B problems.
        seeds: One per problem.
        sampling: ``max_new_tokens`` is each turn's limit.
        second_turn: What a second turn is asked; None samples one turn.
        split_score: See `make_two_turn_trajectory`.

    Raises:
        ConfigError: A second turn is asked for, and the chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
    """
    prompts = policy.encode(problems)
    turns: list[list[Turns]]
    if second_turn is None:
        sampled = policy.sample(prompts, sampling, seeds=seeds)
        turns = [[Turns(sample, [], None) for sample in row] for row in sampled]
    else:
        between = [follow_up(policy.loaded, problem, second_turn) for problem in problems]
        turns = sample_turns(policy, prompts, between, sampling, seeds=seeds)
    task.prepare(
        [
            (problem, read_response(policy, task, sample)[1])
            for problem, row in zip(problems, turns, strict=True)
            for each in row
            for sample in (each.first, each.second)
            if sample is not None
        ]
    )

    def made(problem: Problem, each: Turns) -> Trajectory:
        if second_turn is None:
            return make_trajectory(policy, task, problem, each.first)
        return make_two_turn_trajectory(policy, task, problem, each, split_score)

    rows = zip(problems, turns, strict=True)
    return Rollout(prompts, [Group(problem, [made(problem, each) for each in row]) for problem, row in rows])


def ask_again(
    policy: Policy,
    task: Task,
    conversations: Sequence[tuple[Problem, Prompt, Trajectory]],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    words: str,
) -> list[Trajectory]:
    """Every conversation with one more turn, whose answer then is the one that counts.

    Each has a prompt of its own, which is prefilled.

    Args:
        policy: Samples.
        task: Judges.
        conversations: A problem, its prompt, and what has been said since; no turn was cut off.
        seeds: One per conversation.
        sampling: ``max_new_tokens`` is the turn's limit; the group size is not used.
        words: What the turn is asked.
    """
    inserted = [
        inserted_tokens(t.segments[-1].tokens, follow_up(policy.loaded, problem, words))
        for problem, _, t in conversations
    ]
    prompts = [
        longer_prompt(policy, prompt, t.tokens + between)
        for (_, prompt, t), between in zip(conversations, inserted, strict=True)
    ]
    one = sampling.model_copy(update={"group_size": 1})
    longer = []
    sampled = policy.sample(prompts, one, seeds=seeds)
    for (problem, _, before), between, [sample] in zip(conversations, inserted, sampled, strict=True):
        turn = before.segments[-1].turn + 1
        said, tagged, judged = _turn(policy, task, problem, sample, turn)
        segments = [*before.segments, _observation(policy, between, turn), *said]
        scores = {"sampled": tagged.score} if tagged.score is not None else {}
        longer.append(Trajectory(segments, scores, before.rewards | answer_rewards(tagged, judged), judged))
    return longer


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
