"""What a method is: how to roll out, and how to turn a group into credits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field

from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.types import Credit, Group, Problem
from selfverify.tasks import Task

Objective = Literal["surrogate", "likelihood"]


class MethodConfig(BaseModel):
    """Options of a method; every method adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyGradientConfig(MethodConfig):
    """Options shared by methods that learn from group-relative rewards."""

    kl: float = Field(0.01, ge=0, description="Coefficient of the KL to the reference policy (beta).")
    format_weight: float = Field(
        0.1,
        ge=0,
        description="What well-formed tags in the right order add to the answer's reward.",
    )
    score_format_weight: float | None = Field(
        None, ge=0, description="What a malformed score loses; None is `format_weight`."
    )

    @property
    def score_penalty(self) -> float:
        """What a malformed score loses."""
        return self.format_weight if self.score_format_weight is None else self.score_format_weight

    @property
    def needs_reference(self) -> bool:
        """Whether any channel has a KL term, so that a copy of the starting policy has to be kept."""
        return self.kl > 0

    advantage_eps: float = Field(1e-4, gt=0, description="Added to the standard deviation (TRL: 1e-4).")
    scale_advantage: bool = Field(True, description="Divide by the group's standard deviation (Eq. 1).")


class Method(Protocol):
    """One algorithm. Implementations are one small file each and never touch the learner."""

    name: str
    objective: Objective

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Make the groups of one step."""
        ...

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """What each channel of a group learns; ``valid`` [G] marks trajectories that take part."""
        ...

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Figures to log for one step."""
        ...


def column(group: Group, name: str) -> torch.Tensor:
    """One named reward of a group, ``[G]`` float64."""
    return torch.tensor([t.rewards[name] for t in group.trajectories], dtype=torch.float64)


def quality(group: Group) -> torch.Tensor:
    """What decides contrast, ``[G]`` float64: the task's ``quality`` where it has one, else ``answer``."""
    return torch.tensor(
        [t.rewards.get("quality", t.rewards["answer"]) for t in group.trajectories], dtype=torch.float64
    )


def scores(group: Group, verifier: str = "sampled") -> torch.Tensor:
    """One verifier's scores of a group, ``[G]`` float64, NaN where there is none."""
    return torch.tensor(
        [t.scores.get(verifier, float("nan")) for t in group.trajectories], dtype=torch.float64
    )
