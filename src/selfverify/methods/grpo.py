"""GRPO (ADPO Eq. 1): one reward, one advantage for everything the policy wrote."""

from __future__ import annotations

import torch

from selfverify.core.trajectory import ANSWER, SCORE, Credit, Group
from selfverify.methods.base import Method, PolicyGradientConfig, column
from selfverify.objectives import group_advantage


class GRPO(Method):
    """All tokens learn from the answer's reward; a score is written but never taught."""

    name = "grpo"
    summary = "group-relative policy optimisation of the answer"
    config_class = PolicyGradientConfig
    compares = True
    config: PolicyGradientConfig

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """normalise(R^a) on all channels of the policy, with the format parts in R^a.

        Well-formed tags with a ``<score>`` earn ``format_weight``, of which a malformed score loses its own.
        Where no score is asked for, the other tags earn it.
        """
        c = self.config
        tags, spoilt = column(group, "answer_format"), torch.zeros(len(group.trajectories))
        if any("score_opened" in t.rewards for t in group.trajectories):
            tags = torch.minimum(tags, column(group, "score_opened"))
            spoilt = tags - torch.minimum(tags, column(group, "score_format"))
        reward = column(group, "answer") + (c.format_weight * tags - c.score_penalty * spoilt)
        advantage = group_advantage(reward, valid, scale=c.scale_advantage)
        channels = dict.fromkeys((ANSWER, SCORE, *group.taught_channels))
        return [Credit(channel, advantage, kl_coef=c.kl, valid=valid) for channel in channels]
