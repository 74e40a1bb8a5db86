"""What methods have in common that train on second turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from selfverify.core.evaluation_settings import EvaluationConfig
from selfverify.core.learner_settings import LearnerConfig
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Group
from selfverify.methods.base import Method, MethodConfig
from selfverify.methods.monitor import group_metrics, turn_metrics
from selfverify.policy.policy import Policy
from selfverify.policy.turns import SECOND_TURN
from selfverify.rollouts.rollout import Rollout, roll_out
from selfverify.tasks.base import Task


class TwoTurnConfig(MethodConfig):
    """The request that the second turn answers."""

    second_turn: str = Field(
        SECOND_TURN, min_length=1, description="What the second turn, and every further one, is asked."
    )


class TwoTurnMethod(Method):
    """Learns from two-turn trajectories; by default it samples groups of them and compares each group.

    Attributes:
        split_score: Whether the second turn's score is a segment of its own.
    """

    split_score: ClassVar[bool] = False
    compares = True
    config: TwoTurnConfig

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Sample a group of two-turn trajectories per problem."""
        words = self.config.second_turn
        rollout = roll_out(policy, task, problems, seeds, sampling, words, self.split_score)
        return self.with_scores(policy, rollout, sampling)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The common figures and those of the turns."""
        return group_metrics(groups) | turn_metrics(groups)

    def faults(
        self, learner: LearnerConfig, sampling: SamplingConfig, evaluation: EvaluationConfig
    ) -> list[str]:
        """The default ones, and second turns that are not measured, or measured after another request.

        A method of supervised fine-tuning is mostly not measured at all, so it may leave them out.
        """
        faults = super().faults(learner, sampling, evaluation)
        words, asked = self.config.second_turn, evaluation.second_turn
        if asked is None and self.objective == "surrogate":
            faults.append(
                f"evaluation.second_turn: {self.name} trains second turns; measure them, too: {words!r}"
            )
        elif asked not in (None, words):
            faults.append(
                f"evaluation.second_turn: {asked!r} is not what {self.name} trains with "
                f"(method.second_turn: {words!r})"
            )
        return faults
