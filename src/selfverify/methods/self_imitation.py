"""Filtered self-imitation: the policy learns from its own conversations that succeeded, as if demonstrated.

The baseline of reinforcement learning with the same sampling: groups are sampled as there, and those of their
conversations that were found a success are learnt by likelihood (rejection sampling fine-tuning, RAFT; Dong
et al. 2023, arXiv:2304.06767). Failures teach nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field

from selfverify.core.trajectory import Credit, Group, Trajectory
from selfverify.methods.base import Method, MethodConfig
from selfverify.methods.monitor import agent_metrics, conversation_metrics, group_metrics
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.tool_episode import ACTION


class SelfImitationConfig(MethodConfig):
    """Which conversations are learnt from."""

    keep: Literal["judged", "correct"] = Field(
        "judged",
        description="`judged`: those that the task's judges found a success, which is what the reward of "
        "reinforcement learning knows; `correct`: those that are right by ground truth, with a proper end.",
    )


class SelfImitation(Method):
    """Negative log-likelihood of the agent's own turns in successful conversations, each token equally."""

    name = "self-imitation"
    summary = "agents learn from their own conversations that succeeded"
    config_class = SelfImitationConfig
    config: SelfImitationConfig
    objective = "likelihood"

    @property
    def measured(self) -> bool:
        """See `Method.measured`."""
        return True

    @property
    def channels(self) -> tuple[str, ...]:
        """See `Method.channels`."""
        return (ACTION,)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for the turns of the conversations that are kept; nothing for all others."""
        kept = torch.tensor([self._kept(trajectory) for trajectory in group.trajectories])
        return [Credit(ACTION, kept.double(), valid=valid & kept)]

    def _kept(self, trajectory: Trajectory) -> bool:
        if self.config.keep == "correct":
            return worth_imitating(trajectory.rewards)
        return trajectory.rewards.get("judged_success", 0.0) > 0

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The figures of `SmartSnap.metrics`, and the share of conversations that are kept."""
        kept = [self._kept(trajectory) for group in groups for trajectory in group.trajectories]
        found = group_metrics(groups) | conversation_metrics(groups) | agent_metrics(groups)
        return found | {"imitation/kept": sum(kept) / max(len(kept), 1)}
