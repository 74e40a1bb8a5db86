"""Two-turn rollouts: an answer, a fixed request to evaluate it, and the answer to that (AdaPO Eq. 1).

More turns of the same kind can follow (STaR).
"""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.turns import Turns, follow_up, inserted_tokens, longer_prompt
from selfverify.rollouts.single_turn import Rollout, read_response, verdict
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.types import OBSERVATION, Group, Problem, Segment, Trajectory
from selfverify.tasks import Task
from selfverify.tasks.base import Judged

TURN_1, TURN_2 = "turn_1", "turn_2"


def _segment(
    policy: Policy, task: Task, problem: Problem, sample: Sample, turn: int
) -> tuple[Segment, Tagged, Judged]:
    text, tagged, _ = read_response(policy, task, sample)
    judged = verdict(task, problem, tagged)
    segment = Segment(
        f"turn_{turn + 1}",
        sample.tokens,
        sample.logprobs,
        text,
        turn=turn,
        finish="error" if judged.unjudged else sample.finish,
        parsed=judged,
    )
    return segment, tagged, judged


def _observation(policy: Policy, inserted: list[int], turn: int) -> Segment:
    words: str = policy.tokenizer.decode(inserted, clean_up_tokenization_spaces=False)
    # The environment's tokens have no probability; nothing is trained on them, so that 0 does no harm.
    return Segment(OBSERVATION, inserted, [0.0] * len(inserted), words, author="environment", turn=turn)


def make_trajectory(policy: Policy, task: Task, problem: Problem, turns: Turns) -> Trajectory:
    """Segments ``turn_1``, ``observation`` (what was inserted) and ``turn_2``, with their rewards.

    Rewards: ``correct_1`` and ``correct`` (the first and the second answer; a trajectory without a second one
    ends wrong); of the second answer ``answer``, the task's ``parts``, ``answer_format`` and
    ``score_format``; ``answer_format_1``. A score, where the task asks for one, belongs to its turn. If one
    of the answers cannot be judged, the trajectory finishes with ``error``.
    """
    first, tagged, before = _segment(policy, task, problem, turns.first, 0)
    segments, format_1 = [first], float(tagged.answer_ok)
    if turns.second is None:
        tagged = Tagged()
        after = verdict(task, problem, tagged)
    else:
        segments.append(_observation(policy, turns.inserted, 1))
        second, tagged, after = _segment(policy, task, problem, turns.second, 1)
        segments.append(second)
    if first.finish == "error":
        segments[-1].finish = "error"
    return Trajectory(
        segments,
        scores={"sampled": tagged.score} if tagged.score is not None else {},
        rewards=after.parts
        | {
            "answer": after.reward,
            "correct": float(after.correct),
            "correct_1": float(before.correct),
            "answer_format": float(tagged.answer_ok),
            "answer_format_1": format_1,
            "score_format": float(tagged.score_ok),
        },
        parsed=before if before.unjudged else after,
    )


def roll_out_turns(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    words: str,
) -> Rollout:
    """Sample a group of two-turn trajectories for each problem and judge both answers.

    Args:
        policy: Samples.
        task: Judges.
        problems: B problems.
        seeds: One per problem.
        sampling: ``max_new_tokens`` is each turn's limit.
        words: What the second turn is asked.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
    """
    prompts = policy.encode(problems)
    between = [follow_up(policy.loaded, problem, words) for problem in problems]
    sampled = policy.sample_turns(prompts, between, sampling, seeds=seeds)
    groups = [
        Group(problem, [make_trajectory(policy, task, problem, turns) for turns in row])
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
        segment, tagged, judged = _segment(policy, task, problem, sample, turn)
        rewards = before.rewards | {"answer": judged.reward, "correct": float(judged.correct)}
        rewards |= {"answer_format": float(tagged.answer_ok), "score_format": float(tagged.score_ok)}
        segments = [*before.segments, _observation(policy, between, turn), segment]
        scores = {"sampled": tagged.score} if tagged.score is not None else {}
        longer.append(Trajectory(segments, scores, rewards, judged))
    return longer
