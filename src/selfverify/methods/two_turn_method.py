"""What methods have in common that train on second turns."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from selfverify.core.evaluation_settings import EvaluationConfig
from selfverify.core.learner_settings import LearnerConfig
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Group
from selfverify.methods.base import Method, MethodConfig, needs_a_group
from selfverify.methods.monitor import group_metrics, turn_metrics
from selfverify.policy.policy import Policy
from selfverify.policy.turns import SECOND_TURN
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.two_turn import roll_out_turns
from selfverify.tasks.base import Task


class TwoTurnConfig(MethodConfig):
    """The request that the second turn answers."""

    second_turn: str = Field(
        SECOND_TURN, min_length=1, description="What the second turn, and every further one, is asked."
    )


class TwoTurnMethod(Method):
    """Samples groups of two-turn trajectories and compares them."""

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
        return roll_out_turns(policy, task, problems, seeds, sampling, self.config.second_turn)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The common figures and those of the turns."""
        return group_metrics(groups) | turn_metrics(groups)

    def faults(
        self, learner: LearnerConfig, sampling: SamplingConfig, evaluation: EvaluationConfig
    ) -> list[str]:
        """One sample per problem, and an evaluation that does not measure the second turns."""
        faults = needs_a_group(self, sampling) + other_request(self.name, self.config, evaluation)
        if evaluation.second_turn is None:
            words = self.config.second_turn
            faults.append(
                f"evaluation.second_turn: {self.name} trains second turns; measure them, too: {words!r}"
            )
        return faults


def other_request(name: str, config: TwoTurnConfig, evaluation: EvaluationConfig) -> list[str]:
    """`Method.faults` of method ``name`` where second turns are measured after another request."""
    words, asked = config.second_turn, evaluation.second_turn
    if asked is None or asked == words:
        return []
    return [
        f"evaluation.second_turn: {asked!r} is not what {name} trains with (method.second_turn: {words!r})"
    ]
