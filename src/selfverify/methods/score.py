"""SCoRe (Kumar et al. 2024, arXiv:2409.12917), as AdaPO's baseline: two-turn REINFORCE in two stages.

With one update for each rollout the surrogate's ratio is 1, and its gradient is REINFORCE's; recipes with
more are refused. The baseline is the group's mean. Both stages are one run, so that their KL has one
reference, the policy before stage I (the AdaPO paper's "base model (reference policy)").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from selfverify.methods.base import MethodConfig, column
from selfverify.methods.monitor import group_metrics, turn_metrics
from selfverify.objectives import group_advantage
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.turns import SECOND_TURN
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.two_turn import TURN_1, TURN_2, roll_out_turns
from selfverify.rollouts.types import Credit, Group, Problem, valid_trajectories
from selfverify.tasks import Task


class SCoReConfig(MethodConfig):
    """Options of SCoRe."""

    second_turn: str = Field(SECOND_TURN, min_length=1, description="What the second turn is asked.")
    first_stage: int = Field(
        50,
        ge=0,
        description="Steps of stage I, in which only the second answer is rewarded and the first turn is "
        "held by `first_kl`. From then on (stage II) both are rewarded, the second with a bonus for what it "
        "changed.",
    )
    alpha: float = Field(
        10.0,
        ge=0,
        description="Stage II: the second turn earns r2 + alpha (r2 - r1). The AdaPO paper writes 10, and a "
        "range of [0, 1] beside it.",
    )
    kl: float = Field(0.01, ge=0, description="KL coefficient, but of the first turn in stage I.")
    first_kl: float = Field(0.1, ge=0, description="Stage I: KL coefficient of the first turn.")
    scale_advantage: bool = Field(False, description="Divide by the group's standard deviation.")
    drop_truncated: bool = Field(
        True, description="Leave out trajectories with a turn that was cut off, before any statistic."
    )

    @property
    def needs_reference(self) -> bool:
        """Whether any turn has a KL term."""
        return self.kl > 0 or (self.first_stage > 0 and self.first_kl > 0)


class SCoRe:
    """See the module's docstring."""

    name = "score"
    objective: Literal["surrogate"] = "surrogate"

    def __init__(self, config: SCoReConfig | None = None) -> None:
        self.config = config or SCoReConfig()

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

    def credit(self, group: Group, valid: Tensor) -> list[Credit]:
        """Each turn learns from its own reward, but in stage I, where the trajectory has one only.

        The bonus is the second turn's: counted for the first as well, it would pay for wrong first answers.
        """
        c = self.config
        if c.drop_truncated:
            valid = valid & valid_trajectories(group, drop_truncated=True)
        first, second = column(group, "correct_1"), column(group, "correct")
        one = group.step < c.first_stage
        if one:
            rewards = (second, second)
        else:
            rewards = (first, second + c.alpha * (second - first))
        kls = (c.first_kl if one else c.kl, c.kl)
        return [
            Credit(channel, group_advantage(reward, valid, scale=c.scale_advantage), kl_coef=kl, valid=valid)
            for channel, reward, kl in zip((TURN_1, TURN_2), rewards, kls, strict=True)
        ]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The common figures, those of the turns, and the stage."""
        stage = 1.0 if groups[0].step < self.config.first_stage else 2.0
        return group_metrics(groups) | turn_metrics(groups) | {"score/stage": stage}
