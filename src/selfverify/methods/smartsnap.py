"""SmartSnap (Eq. 1, 3): agents learn to finish a task and to prove it, from one reward per conversation.

The reward is the task's (`agents.reward`). Every turn of the agent is learnt, its thoughts included;
observations of the environment are read only.
"""

from __future__ import annotations

import torch
from pydantic import Field

from selfverify.core.trajectory import Credit, Group
from selfverify.methods.base import Method, MethodConfig, column
from selfverify.objectives import group_advantage
from selfverify.tasks.tool_episode import ACTION


class SmartSnapConfig(MethodConfig):
    """Options of SmartSnap."""

    kl: float = Field(0.0, ge=0)
    """Coefficient of the KL to the reference policy (§4.2: 0)."""

    scale_advantage: bool = True
    """Divide by the group's standard deviation (Eq. 1)."""

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0


class SmartSnap(Method):
    """GRPO on the channel ``action`` with the composite reward; the paper has no KL.

    Eq. 1 has one ratio per trajectory: ``ratio`` and ``denominator`` in ``learner.loss`` are ``trajectory``
    then. The authors' release takes ratios of tokens and their mean over the batch: ``token`` and ``batch``.
    """

    name = "smartsnap"
    summary = "agents that hand in evidence, by the composite reward of its judges"
    config_class = SmartSnapConfig
    compares = True
    config: SmartSnapConfig

    @property
    def channels(self) -> tuple[str, ...]:
        return (ACTION,)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """normalise(R) on the agent's turns (Eq. 1), over the trajectories that have a verdict."""
        c = self.config
        advantage = group_advantage(column(group, "answer"), valid, scale=c.scale_advantage)
        return [Credit(ACTION, advantage, kl_coef=c.kl, valid=valid)]
