"""Methods that learn by likelihood, through the same trainer: from demonstrations or own successes.

Demonstrations are a task's single answers (`SFT`), whole conversations (`ConversationSFT`) or second turns
(`TurnsSFT`): the cold starts of single answers, of agents and of two turns. `TurnsSFT` and `SelfImitation`
also learn from what the policy samples itself and gets right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, SamplingError
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG, parse_tagged
from selfverify.core.trajectory import (
    ANSWER,
    SCORE,
    TURN_2,
    Credit,
    Finish,
    Group,
    Segment,
    Trajectory,
)
from selfverify.methods.base import Method, MethodConfig, ShownMethod, TwoTurnConfig, TwoTurnMethod, column
from selfverify.methods.metrics import turn_metrics
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.base import Task
from selfverify.tasks.tool_episode import ACTION

if TYPE_CHECKING:
    from selfverify.policy.decoding import Sample
    from selfverify.policy.encoding import Prompt
    from selfverify.policy.policy import Policy
    from selfverify.rollouts.rollout import Rollout


class SFTConfig(MethodConfig):
    """The choice of demonstrations, and the gap between the scores of right and wrong ones."""

    right: int = Field(2, ge=0)
    """Right demonstrations per problem."""

    wrong: int = Field(1, ge=0)
    """Wrong ones; their mistakes are context, never trained."""

    score_gap: float = Field(0.0, ge=0, le=1)
    """Distance between the mean score shown for the best and the worst answers. 0 teaches the format only;
    the scores then say nothing."""

    score_weight: float = Field(1.0, ge=0)
    """Loss weight of the score channel."""

    score_noise: float = Field(0.25, ge=0)
    """Standard deviation of the scores shown."""


class SFT(ShownMethod):
    """Negative log-likelihood of demonstrations whose scores are drawn around 0.5 +- score_gap / 2.

    Where the task asks for no score, none is shown.
    """

    name = "sft"
    summary = "supervised fine-tuning on a task's demonstrations (cold start)"
    config_class = SFTConfig
    config: SFTConfig

    def shown(
        self, policy: Policy, task: Task, problem: Problem, prompt: Prompt, seed: int
    ) -> list[Trajectory]:
        """Write the demonstrations.

        Raises:
            ConfigError: The problem's environment speaks first.
        """
        from selfverify.policy.chat import turn_end

        if problem.environment_begins:
            raise ConfigError(
                f"problem {problem.id}: its environment speaks first, and demonstrations have none"
            )
        rng, end = np.random.default_rng(seed), turn_end(policy.loaded, policy.stop_tokens)
        kinds = [False] * self.config.right + [True] * self.config.wrong
        return [self._trajectory(policy, task, problem, rng, wrong, end) for wrong in kinds]

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


OBSERVED = "observed"
"""Channel of the episode's replies where they are taught."""


class ConversationSFTConfig(MethodConfig):
    """Which demonstrations are shown, and how much each weighs."""

    demonstrations: int = Field(1, ge=1)
    """Conversations that are shown for each problem."""

    share_turns: bool = False
    """Weigh a conversation by one over the number of its turns (VTS-V, Eq. 3: 1/(H+1)), together with
    `learner.loss.denominator: trajectory`."""

    observed: float = Field(0.0, ge=0)
    """Weight of what the episode replies in words, which is then taught, too. A fresh small model learns from
    it to copy words; a pretrained one does not need it."""


class ConversationSFT(ShownMethod):
    """Negative log-likelihood of demonstrated turns; what the episode shows is taught on request only.

    The demonstrated turns are said to the task's own episode, so that what lies between them is what the
    episode really replies, and each turn is cut into the channels that the episode gives it.
    """

    name = "conversations-sft"
    summary = "supervised fine-tuning on whole conversations (cold start of agents)"
    config_class = ConversationSFTConfig
    config: ConversationSFTConfig

    def shown(
        self, policy: Policy, task: Task, problem: Problem, prompt: Prompt, seed: int
    ) -> list[Trajectory]:
        """Hold the demonstrated conversations.

        A conversation whose episode fails takes no part in training, nor does one that is longer than the
        limit of the task's conversations (``episode.tokens``).

        Raises:
            DataError: A demonstration has no turns, or the conversation is over before it ends, or it is
                longer than the model's context.
        """
        from selfverify.rollouts.script_sampler import encode_demonstration, within_limits

        rng = np.random.default_rng(seed)
        shown = [task.demonstrate_turns(problem, rng) for _ in range(self.config.demonstrations)]
        told = [
            encode_demonstration(policy, problem, lambda: self.open(task, problem, seed), turns)
            for turns in shown
        ]
        for segment in (segment for one in told for segment in one.segments if self.config.observed):
            if segment.author == "environment" and not segment.images:
                # The tokens of a demonstration were not sampled; any author's are taught or not.
                segment.channel, segment.author = OBSERVED, "policy"
        return within_limits(policy, task, problem, len(prompt.ids), told)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for all tokens of the policy's and of replies that are taught; none for ``context``."""
        ones = torch.ones(len(group.trajectories), dtype=torch.float64)
        weight = 1.0 / column(group, "turns") if self.config.share_turns else 1.0
        return [
            Credit(c, ones, weight=weight * (self.config.observed if c == OBSERVED else 1.0), valid=valid)
            for c in group.taught_channels
        ]


class TurnsSFTConfig(TwoTurnConfig):
    """Where second turns come from, and which are learnt."""

    source: Literal["demonstrated", "checked", "sampled"] = "demonstrated"
    """Behind the policy's own first turns: the first one again where it is right and a right demonstration
    where it is wrong (cold start); or `checked`, the first one again where it passes the task's check of what
    it says, be it right or wrong, and the check with a right answer behind it otherwise; or the policy's own
    second turns, where right."""

    rehearsal: SFTConfig | None = None
    """Demonstrations as `sft` shows them, beside the second turns, so that first answers and their scores are
    not forgotten. `{}` takes that method's defaults."""


class TurnsSFT(TwoTurnMethod):
    """Negative log-likelihood of second turns, behind first turns as the policy really writes them.

    Second turns are demonstrated, or the policy's own: those are sampled at every step, and the right ones
    are learnt. STaR (`selfverify.methods.star`) differs: it samples with a fixed model, and learns
    afterwards.
    """

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
        from selfverify.rollouts.script_sampler import lost, recite

        rng = np.random.default_rng(seed)
        told = []
        for first in firsts:
            second = self._second(policy, task, problem, first, rng)
            if first.finish == Finish.ERROR:
                told.append(lost(problem, SamplingError("its first turn was given up")))
            else:
                told.append(recite(policy, problem, self.open(task, problem, seed), [first, second]))
        return Group(problem, told)

    def _second(
        self, policy: Policy, task: Task, problem: Problem, first: Sample, rng: np.random.Generator
    ) -> Sample:
        """Return the second turn that is shown behind ``first``."""
        from selfverify.policy.chat import turn_end
        from selfverify.policy.decoding import Sample
        from selfverify.rollouts.sampler import sampled_turn

        if first.finish != Finish.STOP:
            return first  # which is the last turn
        tagged = parse_tagged(sampled_turn(policy.tokenizer, first).turn.text, task.tags)
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
        return passed or trajectory.rewards["correct"] > 0

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the turns' figures. Where turns are demonstrated, only ``acc@t1`` is about the policy."""
        turns = [replace(g, trajectories=[t for t in g.trajectories if not _rehearsed(t)]) for g in groups]
        return turn_metrics(turns)


def _rehearsed(trajectory: Trajectory) -> bool:
    return "correct" not in trajectory.rewards


class SelfImitationConfig(MethodConfig):
    """The choice of conversations that are learnt."""

    keep: Literal["judged", "correct"] = "judged"
    """`judged`: those that the task's judges found a success, which is what the reward of reinforcement
    learning knows; `correct`: those that are right by ground truth, with a proper end."""


class SelfImitation(Method):
    """Negative log-likelihood of the agent's own turns in successful conversations, each token equally.

    The baseline of reinforcement learning with the same sampling: groups are sampled as there, and those of
    their conversations that were found a success are learnt as if demonstrated (rejection sampling
    fine-tuning, RAFT; Dong et al. 2023, arXiv:2304.06767). Failures teach nothing.
    """

    name = "self-imitation"
    summary = "agents learn from their own conversations that succeeded"
    config_class = SelfImitationConfig
    config: SelfImitationConfig
    objective = "likelihood"

    @property
    def measured(self) -> bool:
        return True

    @property
    def channels(self) -> tuple[str, ...]:
        return (ACTION,)

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for the turns of the conversations that are kept; nothing for all others."""
        kept = torch.tensor([self._kept(trajectory) for trajectory in group.trajectories])
        return [Credit(ACTION, kept.double(), valid=valid & kept)]

    def _kept(self, trajectory: Trajectory) -> bool:
        if trajectory.finish == Finish.ERROR:
            return False
        if self.config.keep == "correct":
            return worth_imitating(trajectory.rewards)
        return trajectory.rewards.get("judged_success", 0.0) > 0

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the common figures, and the share of conversations that are kept."""
        kept = [self._kept(trajectory) for group in groups for trajectory in group.trajectories]
        return super().metrics(groups) | {"imitation/kept": sum(kept) / max(len(kept), 1)}
