"""Rollouts of answers: what the task's own conversations come to, or answers that are asked for again."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.rollouts.converse import OpenEpisode, Rollout, rollout
from selfverify.rollouts.held_again import hold_again
from selfverify.tasks.answering import SelfCorrection
from selfverify.tasks.base import Task


def roll_out(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    second_turn: str | None = None,
    retries: int = 0,
) -> Rollout:
    """Sample a group of trajectories for each problem and judge them.

    Args:
        policy: Answers.
        task: Opens the conversations and judges answers.
        problems: B problems.
        seeds: One per problem.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        second_turn: A request to re-examine every answer. The second answer then counts, and its score is
            a channel of its own. None holds the task's own conversations.
        retries: How often a lost conversation is held again at most.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
    """

    begin, limits = opening(task, second_turn)
    rolled = rollout(policy, task, problems, seeds, sampling, begin, limits)
    hold_again(policy, task, rolled, seeds, sampling, retries, begin, limits)
    return rolled


def opening(task: Task, second_turn: str | None) -> tuple[OpenEpisode | None, RolloutLimits | None]:
    """How conversations begin and how long they may get; None leaves both to the task.

    Args:
        task: Judges answers.
        second_turn: A request to re-examine every answer. None means the task's own conversations.
    """
    if second_turn is None:
        return None, None

    def ask(problem: Problem, seed: int) -> Episode:
        return SelfCorrection(problem, task.tags, task.verdict, task.ask_again(second_turn), split_score=True)

    return ask, RolloutLimits(turns=2)
