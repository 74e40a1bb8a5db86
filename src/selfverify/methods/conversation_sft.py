"""Supervised fine-tuning on whole conversations that a task demonstrates (an agent's cold start).

The demonstrated turns are said to the task's own episode, so that what lies between them is what the episode
really replies, and each turn is cut into the channels that the episode gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import CONTEXT, Credit, Group, Trajectory
from selfverify.methods.base import Method, MethodConfig, column
from selfverify.tasks.base import DemonstratedTurn, Task

if TYPE_CHECKING:
    from selfverify.policy.policy import Policy
    from selfverify.rollouts.rollout import Rollout

OBSERVED = "observed"
"""Channel of the episode's replies where they are taught."""


class ConversationSFTConfig(MethodConfig):
    """Which demonstrations are shown, and how much each weighs."""

    demonstrations: int = Field(1, ge=1, description="Conversations that are shown for each problem.")
    share_turns: bool = Field(
        False,
        description="Weigh a conversation by one over the number of its turns (VTS-V, Eq. 3: 1/(H+1)), "
        "together with `learner.denominator: trajectory`.",
    )
    observed: float = Field(
        0.0,
        ge=0,
        description="Weight of what the episode replies in words, which is then taught, too. A fresh small "
        "model learns from it to copy words; a pretrained one does not need it.",
    )


class ConversationSFT(Method):
    """Negative log-likelihood of demonstrated turns; what the episode shows is taught on request only."""

    name = "conversations-sft"
    summary = "supervised fine-tuning on whole conversations (cold start of agents)"
    config_class = ConversationSFTConfig
    config: ConversationSFTConfig
    objective = "likelihood"

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Hold the demonstrated conversations; nothing is sampled from the policy.

        A conversation whose episode fails takes no part in training, nor does one that is longer than the
        limit of the task's conversations (``episode.tokens``).

        Raises:
            DataError: A demonstration has no turns, or a problem's conversation is over before it ends, or
                they are longer than the model's context.
        """
        from selfverify.rollouts.rollout import Rollout
        from selfverify.rollouts.script_sampler import within_limits

        prompts, groups = policy.encode(problems), []
        for problem, prompt, seed in zip(problems, prompts, seeds, strict=True):
            rng = np.random.default_rng(seed)
            shown = [task.demonstrate_turns(problem, rng) for _ in range(self.config.demonstrations)]
            told = [self._told(policy, task, problem, seed, turns) for turns in shown]
            groups.append(Group(problem, within_limits(policy, task, problem, len(prompt.ids), told)))
        return Rollout(prompts, groups)

    def _told(
        self, policy: Policy, task: Task, problem: Problem, seed: int, turns: Sequence[DemonstratedTurn]
    ) -> Trajectory:
        from selfverify.rollouts.script_sampler import encode_demonstration

        told = encode_demonstration(
            policy, problem, lambda: self.open(task, problem, seed), [turn.text for turn in turns]
        )
        for segment in told.segments:
            if segment.author == "policy" and not turns[segment.turn].taught:
                segment.channel = CONTEXT
        if self.config.observed:
            for segment in told.segments:
                if segment.author == "environment" and not segment.images:
                    # Nobody sampled a demonstration: whoever wrote its tokens, they are taught or not.
                    segment.channel, segment.author = OBSERVED, "policy"
        return told

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for all tokens of the policy's and of replies that are taught; none for ``context``."""
        ones = torch.ones(len(group.trajectories), dtype=torch.float64)
        weight = 1.0 / column(group, "turns") if self.config.share_turns else 1.0
        own = [s.channel for t in group.trajectories for s in t.segments if s.author == "policy"]
        return [
            Credit(c, ones, weight=weight * (self.config.observed if c == OBSERVED else 1.0), valid=valid)
            for c in dict.fromkeys(own)
            if c != CONTEXT
        ]
