"""SCoRe (Kumar et al. 2024, arXiv:2409.12917), as AdaPO's baseline: two-turn REINFORCE in two stages.

With one update for each rollout the surrogate's ratio is 1, and its gradient is REINFORCE's. A recipe with
more updates is refused. The baseline is the group's mean. Both stages are one run, so that their KL has one
reference, the policy before stage I (the AdaPO paper's "base model (reference policy)").
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from selfverify.core.credit import Credit, valid_trajectories
from selfverify.core.evaluation_settings import EvaluationConfig
from selfverify.core.learner_settings import LearnerConfig
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import TURN_1, TURN_2, Group
from selfverify.methods.base import column
from selfverify.methods.two_turn_method import TwoTurnConfig, TwoTurnMethod
from selfverify.objectives import group_advantage


class SCoReConfig(TwoTurnConfig):
    """Options of SCoRe."""

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


class SCoRe(TwoTurnMethod):
    """See the module's docstring."""

    name = "score"
    summary = "two-turn REINFORCE in two stages (SCoRe)"
    config_class = SCoReConfig
    config: SCoReConfig

    def credit(self, group: Group, valid: Tensor) -> list[Credit]:
        """Return both turns' credits: in stage I both learn from the second reward, then each from its own.

        Only the second turn gets the bonus, which would pay for wrong answers in the first turn.
        """
        c = self.config
        valid = valid & valid_trajectories(group, c.drop_truncated)
        first, second = column(group, "correct_1"), column(group, "correct")
        if group.step < c.first_stage:
            rewards, kls = (second, second), (c.first_kl, c.kl)
        else:
            rewards, kls = (first, second + c.alpha * (second - first)), (c.kl, c.kl)
        return [
            Credit(channel, group_advantage(reward, valid, scale=c.scale_advantage), kl_coef=kl, valid=valid)
            for channel, reward, kl in zip((TURN_1, TURN_2), rewards, kls, strict=True)
        ]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the common figures, those of the turns, and the stage."""
        stage = 1.0 if groups[0].step < self.config.first_stage else 2.0
        return super().metrics(groups) | {"score/stage": stage}

    def faults(
        self, learner: LearnerConfig, sampling: SamplingConfig, evaluation: EvaluationConfig
    ) -> list[str]:
        """As every two-turn method, several updates for a rollout, and a stage II without a step."""
        faults = super().faults(learner, sampling, evaluation)
        updates = learner.updates_per_rollout * learner.inner_epochs
        if updates > 1:
            faults.append(
                f"learner: {self.name} is REINFORCE, with one update for each rollout, not {updates}"
            )
        first = self.config.first_stage
        if first >= learner.steps:
            faults.append(
                f"method.first_stage={first} leaves nothing of learner.steps={learner.steps} for stage II"
            )
        return faults
