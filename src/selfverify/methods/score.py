"""SCoRe (Kumar et al. 2024, arXiv:2409.12917), as AdaPO's baseline: two-turn REINFORCE in two stages.

With one update for each rollout the surrogate's ratio is 1, and its gradient is REINFORCE's. A recipe with
more updates is refused. The baseline is the group's mean. Both stages are one run, so that their KL has one
reference, the policy before stage I (the AdaPO paper's "base model (reference policy)").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import TURN_1, TURN_2, Credit, Group, valid_trajectories
from selfverify.methods.base import TwoTurnConfig, TwoTurnMethod, column
from selfverify.objectives import group_advantage


class SCoReConfig(TwoTurnConfig):
    """Options of SCoRe."""

    first_stage: int = Field(50, ge=0)
    """Steps of stage I, in which only the second answer is rewarded and the first turn is held by `first_kl`.
    From then on (stage II) both are rewarded, the second with a bonus for what it changed."""

    alpha: float = Field(10.0, ge=0)
    """Stage II: the second turn earns r2 + alpha (r2 - r1). The AdaPO paper writes 10, and a range of [0, 1]
    beside it."""

    kl: float = Field(0.01, ge=0)
    """KL coefficient, but of the first turn in stage I."""

    first_kl: float = Field(0.1, ge=0)
    """Stage I: KL coefficient of the first turn."""

    silent_kl: bool = True
    """Hold the first turn of stage I also in groups whose second answers are all right or all wrong, so that
    the strict KL counts for every problem. Off, such groups teach nothing and leave."""

    first_turn: Literal["learns", "held"] = "learns"
    """What the first turn does in stage I: it learns from the second answer's reward, whose expectation runs
    over both turns, or it is only held by its KL."""

    format_weight: float = Field(0.0, ge=0)
    """What well-formed tags add to the reward of their turn; without a part in the bonus."""

    scale_advantage: bool = False
    """Divide by the group's standard deviation."""

    drop_truncated: bool = True
    """Leave out trajectories with a turn that was cut off, before any statistic."""

    @property
    def needs_reference(self) -> bool:
        """Whether any turn has a KL term."""
        return self.kl > 0 or (self.first_stage > 0 and self.first_kl > 0)

    @model_validator(mode="after")
    def _check_hold(self) -> SCoReConfig:
        if self.first_turn == "held" and not self.silent_kl:
            raise ValueError("first_turn: held is held by its KL alone, which silent_kl: false takes away")
        return self


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
        tidy = tidy_1 = torch.zeros_like(first)
        if c.format_weight:
            tidy = c.format_weight * column(group, "answer_format")
            tidy_1 = c.format_weight * column(group, "answer_format_1")
        staged = group.step < c.first_stage
        if not staged:
            rewards, kls = (first + tidy_1, second + c.alpha * (second - first) + tidy), (c.kl, c.kl)
        elif c.first_turn == "held":
            rewards, kls = (torch.zeros_like(first), second + tidy), (c.first_kl, c.kl)
        else:
            rewards, kls = (second + tidy, second + tidy), (c.first_kl, c.kl)
        found = [
            Credit(channel, group_advantage(reward, valid, scale=c.scale_advantage), kl_coef=kl, valid=valid)
            for channel, reward, kl in zip((TURN_1, TURN_2), rewards, kls, strict=True)
        ]
        found[0].holds = staged and c.silent_kl
        return found

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the common figures, those of the turns, and the stage."""
        stage = 1.0 if groups[0].step < self.config.first_stage else 2.0
        return super().metrics(groups) | {"score/stage": stage}

    def faults(self, learner: TrainerConfig, sampling: SamplingConfig) -> list[str]:
        """Return the default faults, several updates for a rollout, and a stage II without a step."""
        faults = super().faults(learner, sampling)
        updates = learner.batch.updates_per_rollout * learner.batch.inner_epochs
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
