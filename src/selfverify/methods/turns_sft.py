"""Supervised fine-tuning on second turns: demonstrated ones (the two-turn cold start), or the policy's own.

The policy's own second turns are sampled at every step, and those that are right are learnt. STaR
(`selfverify.methods.star`) differs: it samples with a fixed model, and learns afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG, parse_tagged
from selfverify.core.trajectory import TURN_2, Credit, Finish, Group, Trajectory
from selfverify.methods.monitor import turn_metrics
from selfverify.methods.sft import SFT, SFTConfig
from selfverify.methods.two_turn_method import TwoTurnConfig, TwoTurnMethod
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.policy.decoding import Sample
    from selfverify.policy.policy import Policy
    from selfverify.rollouts.rollout import Rollout


class TurnsSFTConfig(TwoTurnConfig):
    """Where second turns come from, and which are learnt."""

    source: Literal["demonstrated", "checked", "sampled"] = Field(
        "demonstrated",
        description="Behind the policy's own first turns: the first one again where it is right and a right "
        "demonstration where it is wrong (cold start); or `checked`, the first one again where it passes the "
        "task's check of what it says, be it right or wrong, and the check with a right answer behind it "
        "otherwise; or the policy's own second turns, where right.",
    )
    keep_right: bool = Field(
        True,
        description="Learn from second turns behind a right first one, too.",
    )
    rehearsal: SFTConfig | None = Field(
        None,
        description="Demonstrations as `sft` shows them, beside the second turns, so that "
        "first answers and their scores are not forgotten. `{}` takes that method's defaults.",
    )


class TurnsSFT(TwoTurnMethod):
    """Negative log-likelihood of second turns, behind first turns as the policy really writes them."""

    name = "turns-sft"
    summary = "supervised fine-tuning on second turns (two-turn cold start)"
    config_class = TurnsSFTConfig
    config: TurnsSFTConfig
    objective = "likelihood"
    compares = False

    def __init__(self, config: TurnsSFTConfig | None = None) -> None:
        super().__init__(config)
        self.rehearsal = SFT(self.config.rehearsal) if self.config.rehearsal else None

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Sample first turns, sample or write the second turns, and add the demonstrations to rehearse."""
        from selfverify.rollouts.rollout import Rollout

        if self.config.source == "sampled":
            made = super().rollout(policy, task, problems, seeds, sampling)
        else:
            prompts = policy.encode(problems)
            drawn = zip(problems, seeds, policy.sample(prompts, sampling, seeds=seeds), strict=True)
            made = Rollout(prompts, [self._group(policy, task, *row) for row in drawn])
        if self.rehearsal is not None:
            shown = self.rehearsal.rollout(policy, task, problems, seeds, sampling)
            for group, more in zip(made.groups, shown.groups, strict=True):
                group.trajectories += more.trajectories
        return made

    def _group(
        self, policy: Policy, task: Task, problem: Problem, seed: int, firsts: Sequence[Sample]
    ) -> Group:
        """Write a second turn behind each of the first turns."""
        from selfverify.rollouts.rollout import recite

        rng = np.random.default_rng(seed)
        turns = [[first, self._second(policy, task, problem, first, rng)] for first in firsts]
        told = [recite(policy, problem, self.open(task, problem, seed), both) for both in turns]
        return Group(problem, told)

    def _second(
        self, policy: Policy, task: Task, problem: Problem, first: Sample, rng: np.random.Generator
    ) -> Sample:
        """The second turn that is shown behind ``first``."""
        from selfverify.policy.chat import turn_end
        from selfverify.policy.decoding import Sample
        from selfverify.rollouts.conversation import said_of

        if first.finish != Finish.STOP:
            return first  # which is the last turn
        tagged = parse_tagged(said_of(policy, first).text, task.tags)
        scored = SCORE_TAG not in task.tags or tagged.score_ok
        if self.config.source == "checked":
            text = task.recheck(problem, tagged, rng)
        # A malformed turn is not copied: it would be learnt from turn to turn.
        elif task.verdict(problem, tagged).correct and tagged.answer_ok and scored:
            return Sample(first.tokens, [], Finish.STOP)
        else:
            text = "".join(text for _, text in task.demonstrate(problem, rng, wrong=False).pieces)
        if SCORE_TAG in task.tags:
            # The score of the first turn is repeated: only the place of scores is taught here.
            text += f"<score>{0.5 if tagged.score is None else tagged.score:.1f}</score>"
        ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Sample([*ids, turn_end(policy.loaded, policy.stop_tokens)], [], Finish.STOP)

    @property
    def channels(self) -> tuple[str, ...]:
        """The second turn, and what is rehearsed."""
        return (TURN_2, *(self.rehearsal.channels if self.rehearsal else ()))

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """Return 1 for the second turns that are learnt, and the rehearsed demonstrations' credit."""
        learnt = torch.tensor([self._teaches(trajectory) for trajectory in group.trajectories])
        credits = [Credit(TURN_2, learnt.double(), valid=valid & learnt)]
        return credits + (self.rehearsal.credit(group, valid) if self.rehearsal else [])

    def _teaches(self, trajectory: Trajectory) -> bool:
        if _rehearsed(trajectory):
            return False
        passed = self.config.source == "checked" and len(trajectory.segments) > 1  # right or wrong
        if not (passed or trajectory.rewards["correct"]):
            return False
        return self.config.keep_right or not trajectory.rewards["correct_1"]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the turns' figures. Where turns are demonstrated, only ``acc@t1`` is about the policy."""
        turns = [replace(g, trajectories=[t for t in g.trajectories if not _rehearsed(t)]) for g in groups]
        return turn_metrics(turns)


def _rehearsed(trajectory: Trajectory) -> bool:
    return "correct" not in trajectory.rewards
