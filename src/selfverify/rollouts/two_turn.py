"""Two-turn rollouts: an answer, a fixed request to evaluate it, and the answer to that (AdaPO Eq. 1).

More turns of the same kind can follow (STaR).
"""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Segment, Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.turns import Turns, follow_up, inserted_tokens, longer_prompt, sample_turns
from selfverify.rollouts.single_turn import (
    SCORE,
    Rollout,
    answer_rewards,
    prepare,
    read_response,
    verdict,
)
from selfverify.tasks.base import Judged, Task

TURN_1, TURN_2 = "turn_1", "turn_2"


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


def make_trajectory(
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


def roll_out_turns(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    words: str,
    split_score: bool = False,
) -> Rollout:
    """Sample a group of two-turn trajectories for each problem and judge both answers.

    Args:
        policy: Samples.
        task: Judges.
        problems: B problems.
        seeds: One per problem.
        sampling: ``max_new_tokens`` is each turn's limit.
        words: What the second turn is asked.
        split_score: See `make_trajectory`.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
    """
    prompts = policy.encode(problems)
    between = [follow_up(policy.loaded, problem, words) for problem in problems]
    sampled = sample_turns(policy, prompts, between, sampling, seeds=seeds)
    drawn = [(problem, turns) for problem, row in zip(problems, sampled, strict=True) for turns in row]
    both = [(problem, turn) for problem, turns in drawn for turn in (turns.first, turns.second)]
    prepare(policy, task, [(problem, turn) for problem, turn in both if turn is not None])
    groups = [
        Group(problem, [make_trajectory(policy, task, problem, turns, split_score) for turns in row])
        for problem, row in zip(problems, sampled, strict=True)
    ]
    return Rollout(prompts, groups)


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
