"""Asks a policy questions that quote what others have written, each several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import rollout
from selfverify.tasks.base import Task, Verdict


def ask_policy(
    policy: Policy,
    asked: Sequence[tuple[Problem, Observation]],
    seeds: Sequence[int],
    sampling: SamplingConfig,
) -> list[list[PolicyTurn | None]]:
    """Ask the policy each question ``sampling.group_size`` times.

    Args:
        policy: Answers.
        asked: A problem, and what is shown behind it. Words that are shown mean nothing to the tokenizer,
            whatever markup they hold; the words of the problem itself do.
        seeds: One per question.
        sampling: How often each is asked, temperature, length.

    Returns:
        Each question's answers; None where there is none, as of a question that is too long for the model.

    Raises:
        ConfigError: The chat template lets nothing be shown behind a problem.
    """
    if not asked:
        return []
    problems = [replace(problem, environment_begins=True) for problem, _ in asked]
    heard: list[_Once] = []

    def begin(problem: Problem, seed: int) -> Episode:
        # Conversations are opened problem by problem.
        heard.append(_Once(asked[len(heard) // sampling.group_size][1]))
        return heard[-1]

    rollout(policy, _Questions(), problems, seeds, sampling, begin, RolloutLimits(turns=1))
    size = sampling.group_size
    return [[once.said for once in heard[b * size : (b + 1) * size]] for b in range(len(problems))]


class _Once(Episode):
    """Shows something, and keeps the first thing that is said."""

    def __init__(self, shown: Observation) -> None:
        self.shown = shown
        self.said: PolicyTurn | None = None

    def reset(self) -> Observation:
        return self.shown

    def step(self, said: PolicyTurn) -> Observation:
        self.said = said
        return Observation(done=True)

    def result(self) -> EpisodeResult:
        return EpisodeResult()


class _Questions(Task):
    """Has no problems of its own."""

    name = "questions"
    summary = "questions that others ask"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        raise DataError("questions are asked, not made")

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        raise DataError("answers to questions are not judged")
