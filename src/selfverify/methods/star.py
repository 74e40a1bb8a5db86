"""STaR (Zelikman et al. 2022, arXiv:2203.14465), as AdaPO's baseline (its Appendix B).

The model answers, is asked again for some rounds while its answer is wrong, and is fine-tuned on the
conversations that it corrected; all of it is repeated. The paper does not say what of a correction is learnt:
here its last turn, behind the wrong ones that it corrects. `selfverify.bootstrap` has the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from selfverify.methods.base import MethodConfig
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import derived_seed
from selfverify.policy.turns import SECOND_TURN
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.two_turn import ask_again, roll_out_turns
from selfverify.rollouts.types import Credit, Group, Problem, Trajectory
from selfverify.tasks import Task

CONVERSATION = "conversation"
"""Key in a problem's meta of the conversation to learn from."""


class STaRConfig(MethodConfig):
    """How conversations are collected, and how long they are learnt from."""

    second_turn: str = Field(SECOND_TURN, min_length=1, description="What every further turn is asked.")
    iterations: int = Field(2, ge=1, description="Times that conversations are sampled and learnt from.")
    rounds: int = Field(2, ge=1, description="Turns behind the first, as long as the answer is wrong.")
    problems: int = Field(
        1000, ge=1, description="Training problems that each iteration samples, `sampling.group_size` times."
    )
    epochs: float = Field(
        2.0, gt=0, description="Passes over an iteration's conversations; `learner.steps` at most."
    )
    keep_right: bool = Field(
        False, description="Learn from second turns that keep a right first answer, too."
    )


class STaR:
    """See the module's docstring."""

    name = "star"
    objective: Literal["likelihood"] = "likelihood"

    def __init__(self, config: STaRConfig | None = None) -> None:
        self.config = config or STaRConfig()

    def collect(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> list[list[Trajectory]]:
        """For each problem the conversations that are worth learning from: their last answer is right.

        Conversations that were cut off, or whose answers have no verdict, are not.
        """
        words = self.config.second_turn
        rollout = roll_out_turns(policy, task, problems, seeds, sampling, words)
        kept: list[list[Trajectory]] = [[] for _ in problems]
        going = [
            (n, g, t) for n, group in enumerate(rollout.groups) for g, t in enumerate(group.trajectories)
        ]
        for round in range(1, self.config.rounds + 1):
            if round > 1:
                asked = [(problems[n], rollout.prompts[n], t) for n, _, t in going]
                own = [derived_seed(seeds[n], round, g) for n, g, _ in going]
                again = ask_again(policy, task, asked, own, sampling, words)
                going = [(n, g, t) for (n, g, _), t in zip(going, again, strict=True)]
            going = [(n, g, t) for n, g, t in going if not t.truncated and t.finish != "error"]
            for n, _, trajectory in going:
                rewards = trajectory.rewards
                # What is malformed behind a right answer would be learnt, too.
                whole = rewards["correct"] > 0 and rewards["score_opened"] <= rewards["score_format"]
                if whole and (rewards["correct_1"] == 0 or self.config.keep_right):
                    kept[n].append(trajectory)
            going = [(n, g, t) for n, g, t in going if t.rewards["correct"] == t.rewards["correct_1"] == 0]
        return kept

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """The conversations that the problems bring along; nothing is sampled."""
        groups = [Group(problem, [problem.meta[CONVERSATION]]) for problem in problems]
        return Rollout(policy.encode(problems), groups)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for every token of a conversation's last turn."""
        last = [t.segments[-1].channel for t in group.trajectories]
        ones = torch.ones(len(last), dtype=torch.float64)
        return [
            Credit(channel, ones, valid=valid & torch.tensor([own == channel for own in last]))
            for channel in dict.fromkeys(last)
        ]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """How many rounds it took to correct what is learnt from, on average."""
        rounds = [t.segments[-1].turn for group in groups for t in group.trajectories]
        return {"star/rounds": float(np.mean(rounds))}
