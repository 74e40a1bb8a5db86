"""Supervised fine-tuning on a task's demonstrations, through the same learner (the cold start)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG
from selfverify.core.trajectory import ANSWER, SCORE, Credit, Finish, Group, Segment, Trajectory
from selfverify.methods.base import Method, MethodConfig
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.policy.policy import Policy
    from selfverify.rollouts.rollout import Rollout


class SFTConfig(MethodConfig):
    """Which demonstrations are shown, and how much their scores say."""

    right: int = Field(2, ge=0, description="Right demonstrations per problem.")
    wrong: int = Field(1, ge=0, description="Wrong ones; their mistakes are context, never trained.")
    score_gap: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Distance between the mean score shown for the best and the worst answers. "
        "0 teaches the format only; the scores then say nothing.",
    )
    score_weight: float = Field(1.0, ge=0, description="Loss weight of the score channel.")
    score_noise: float = Field(0.25, ge=0, description="Standard deviation of the scores shown.")


class SFT(Method):
    """Negative log-likelihood of demonstrations whose scores are drawn around 0.5 +- score_gap / 2.

    Where the task asks for no score, none is shown.
    """

    name = "sft"
    summary = "supervised fine-tuning on a task's demonstrations (cold start)"
    config_class = SFTConfig
    config: SFTConfig
    objective = "likelihood"

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Write the demonstrations of each problem; nothing is sampled from the policy.

        Raises:
            ConfigError: A problem's environment speaks first.
            DataError: A problem cannot be encoded.
        """
        from selfverify.policy.chat import turn_end
        from selfverify.rollouts.rollout import Rollout

        groups, end = [], turn_end(policy.loaded, policy.stop_tokens)
        for problem, seed in zip(problems, seeds, strict=True):
            if problem.environment_begins:
                raise ConfigError(
                    f"problem {problem.id}: its environment speaks first, and demonstrations have none"
                )
            rng = np.random.default_rng(seed)
            kinds = [False] * self.config.right + [True] * self.config.wrong
            told = [self._trajectory(policy, task, problem, rng, wrong, end) for wrong in kinds]
            groups.append(Group(problem, told))
        return Rollout(policy.encode(problems), groups)

    def _trajectory(
        self, policy: Policy, task: Task, problem: Problem, rng: np.random.Generator, wrong: bool, end: int
    ) -> Trajectory:
        shown = task.demonstrate(problem, rng, wrong)
        mean = 0.5 + self.config.score_gap * (shown.quality - 0.5)
        # Clipped before it is rounded: a score of -0.0 would be written with its sign, which is malformed.
        score = round(float(np.clip(rng.normal(mean, self.config.score_noise), 0.0, 1.0)), 1)
        pieces = shown.pieces
        if SCORE_TAG in task.tags:
            channel, text = pieces[-1]
            pieces = [*pieces[:-1], (channel, f"{text}<score>"), (SCORE, f"{score:.1f}</score>")]
        segments = [
            Segment(channel, policy.tokenizer(text, add_special_tokens=False)["input_ids"], text=text)
            for channel, text in pieces
        ]
        segments[-1].tokens.append(end)
        segments[-1].finish = Finish.STOP
        return Trajectory(segments, rewards={"quality": shown.quality})

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for every token of the answer and score channels; ``context`` gets none."""
        ones = torch.ones(len(group.trajectories), dtype=torch.float64)
        return [
            Credit(ANSWER, ones, valid=valid),
            Credit(SCORE, ones, weight=self.config.score_weight, valid=valid),
        ]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Mean quality of what was shown."""
        return {"quality": float(np.mean([t.rewards["quality"] for g in groups for t in g.trajectories]))}
