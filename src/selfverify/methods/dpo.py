"""Multi-step direct preference optimisation (VTS-V Eq. 4, 5, 10): verifiers learn from pairs of traces.

The policy that is trained becomes V_phi, the one that it begins from is V_phi0: the reference, which with
LoRA is the same model without its adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from selfverify.core.problem import Problem
from selfverify.core.trajectory import Credit, Group, Trajectory
from selfverify.methods.base import MethodConfig, ShownMethod
from selfverify.tasks.base import DemonstratedConversation, DemonstratedTurn, Task

if TYPE_CHECKING:
    from selfverify.policy.encoding import Prompt
    from selfverify.policy.policy import Policy


class DPOConfig(MethodConfig):
    """The parts of a pair that are compared, and how strongly the policy is held to the reference."""

    eta: float = Field(0.1, gt=0)
    """The factor of the log-ratios (VTS-V's η, DPO's β)."""

    level: Literal["steps", "answer"] = "steps"
    """`steps`: all plans, actions and answers behind what both sides have in common (Eq. 10). `answer`: each
    side's last turn alone, behind all that it has said and seen before: the baseline."""

    @property
    def needs_reference(self) -> bool:
        return True


class DPO(ShownMethod):
    """DPO of conversations: -log sigmoid(r(chosen) - r(rejected)), with r = eta times the log-ratio of the
    policy's tokens (Eq. 10).

    Observations of tools are read and not learnt. A pair of which one side cannot be used takes no part.
    """

    name = "dpo"
    summary = "direct preference optimisation of conversations, turn by turn (VTS-V's verifier)"
    config_class = DPOConfig
    config: DPOConfig
    objective = "pairwise"

    def shown(
        self, policy: Policy, task: Task, problem: Problem, prompt: Prompt, seed: int
    ) -> list[Trajectory]:
        """Hold both conversations of the pair.

        Raises:
            ConfigError: The task has no preferences.
            DataError: A side has no turns, or is longer than the model's context.
        """
        from selfverify.rollouts.script_sampler import encode_demonstration, within_limits

        def told(side: DemonstratedConversation) -> Trajectory:
            whole, last = self.config.level == "steps", len(side.texts) - 1
            turns = [DemonstratedTurn(text, whole or n == last) for n, text in enumerate(side.texts)]
            return encode_demonstration(policy, problem, lambda: side.episode, turns)

        both = [*map(told, task.demonstrate_pair(problem))]
        return within_limits(policy, task, problem, len(prompt.ids), both)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for all that the chosen side says, -1 for the rejected one, eta as the coefficient."""
        sides = torch.tensor([1.0, -1.0], dtype=torch.float64)
        eta = self.config.eta
        return [Credit(own, sides, kl_coef=eta, valid=valid) for own in group.taught_channels]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return how many turns and tokens the sides have. (The trainer logs how often the policy prefers the
        chosen one.)"""
        found: dict[str, float] = {}
        for number, side in enumerate(("chosen", "rejected")):
            told = [group.trajectories[number] for group in groups]
            found[f"{side}/turns"] = sum(t.rewards["turns"] for t in told) / max(len(told), 1)
            found[f"{side}/tokens"] = sum(t.written for t in told) / max(len(told), 1)
        return found
