"""Fine-tuning on second turns: the two-turn cold start, and STaR (Zelikman et al. 2022) by steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from selfverify.methods.base import SECOND_TURN, MethodConfig, column
from selfverify.methods.monitor import turn_metrics
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.turns import Turns, follow_up, inserted_tokens
from selfverify.rollouts.single_turn import Rollout, read_response, verdict
from selfverify.rollouts.two_turn import TURN_1, TURN_2, make_trajectory, roll_out_turns
from selfverify.rollouts.types import Credit, Group, Problem
from selfverify.tasks import Task


class TurnsSFTConfig(MethodConfig):
    """Where second turns come from, and which are learnt."""

    second_turn: str = Field(SECOND_TURN, min_length=1, description="What the second turn is asked.")
    source: Literal["demonstrated", "sampled"] = Field(
        "demonstrated",
        description="Behind the policy's own first turns: the first one again where it is right and a right "
        "demonstration where it is wrong (cold start); or the policy's own second turns, where right (STaR).",
    )
    keep_right: bool = Field(
        True,
        description="Learn from second turns behind a right first one, too; STaR keeps corrections only.",
    )
    first_weight: float = Field(
        0.0, ge=0, description="Loss weight of right first turns, so that the first answer is not forgotten."
    )


class TurnsSFT:
    """Negative log-likelihood of second turns, behind first turns as the policy really writes them."""

    name = "turns-sft"
    objective: Literal["likelihood"] = "likelihood"

    def __init__(self, config: TurnsSFTConfig | None = None) -> None:
        self.config = config or TurnsSFTConfig()

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Sample first turns; sample the second, or write them."""
        if self.config.source == "sampled":
            return roll_out_turns(policy, task, problems, seeds, sampling, self.config.second_turn)
        prompts = policy.encode(problems)
        groups = []
        sampled = policy.sample(prompts, sampling, seeds=seeds)
        for problem, seed, samples in zip(problems, seeds, sampled, strict=True):
            between = follow_up(policy.loaded, problem, self.config.second_turn)
            rng = np.random.default_rng(seed)
            turns = [self._demonstrate(policy, task, problem, sample, between, rng) for sample in samples]
            groups.append(Group(problem, [make_trajectory(policy, task, problem, each) for each in turns]))
        return Rollout(prompts, groups)

    @staticmethod
    def _demonstrate(
        policy: Policy,
        task: Task,
        problem: Problem,
        first: Sample,
        between: Sequence[int],
        rng: np.random.Generator,
    ) -> Turns:
        if first.finish != "stop":
            return Turns(first, [], None)
        inserted = inserted_tokens(first, between)
        _, tagged, _ = read_response(policy, task, first)
        if verdict(task, problem, tagged).correct:
            return Turns(first, inserted, Sample(first.tokens, [], "stop"))
        text = "".join(text for _, text in task.demonstrate(problem, rng, wrong=False).pieces)
        if "score" in task.tags:
            # Whatever it said of the first answer: nothing is taught about scores here but their place.
            text += f"<score>{0.5 if tagged.score is None else tagged.score:.1f}</score>"
        ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Turns(first, inserted, Sample([*ids, policy.tokenizer.eos_token_id], [], "stop"))

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for the second turns that are learnt, and for right first turns."""
        first, second = column(group, "correct_1") > 0, column(group, "correct") > 0
        learnt = second if self.config.keep_right else second & ~first
        credits = [Credit(TURN_2, learnt.double(), valid=valid & learnt)]
        if self.config.first_weight > 0:
            credits.append(
                Credit(TURN_1, first.double(), weight=self.config.first_weight, valid=valid & first)
            )
        return credits

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The turns' figures: of demonstrations, ``acc@t1`` is the policy's own and ``acc@t2`` theirs."""
        return turn_metrics(groups)
