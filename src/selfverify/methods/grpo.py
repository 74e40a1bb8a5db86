"""GRPO (ADPO Eq. 1): one reward, one advantage for everything the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from selfverify.methods.base import PolicyGradientConfig, column
from selfverify.methods.monitor import group_metrics
from selfverify.objectives import group_advantage
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import ANSWER, SCORE, Rollout, roll_out
from selfverify.rollouts.types import Credit, Group, Problem
from selfverify.tasks import Task


class GRPOConfig(PolicyGradientConfig):
    """Options of GRPO."""


class GRPO:
    """All tokens learn from the answer's reward; a score is written but never taught."""

    name = "grpo"
    objective: Literal["surrogate"] = "surrogate"

    def __init__(self, config: GRPOConfig | None = None) -> None:
        self.config = config or GRPOConfig()

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Sample a group per problem."""
        return roll_out(policy, task, problems, seeds, sampling)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """normalise(R^a) on both channels, with the format parts in R^a.

        Well-formed tags with a ``<score>`` earn ``format_weight``, of which a malformed score loses its own.
        """
        c = self.config
        tags = torch.minimum(column(group, "answer_format"), column(group, "score_opened"))
        spoilt = tags - torch.minimum(tags, column(group, "score_format"))
        reward = column(group, "answer") + (c.format_weight * tags - c.score_penalty * spoilt)
        advantage = group_advantage(reward, valid, c.advantage_eps, c.scale_advantage)
        return [Credit(channel, advantage, kl_coef=c.kl, valid=valid) for channel in (ANSWER, SCORE)]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `selfverify.methods.monitor`."""
        return group_metrics(groups)
