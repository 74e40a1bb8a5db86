"""Methods: how to roll out, and how to turn a group into credits.

`TwoTurnMethod` is the base of methods that train on second turns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from selfverify.core.config import Config, EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER, SCORE, TURN_1, TURN_2, Credit, Finish, Group, Trajectory
from selfverify.data.preferences import read_verdicts
from selfverify.methods.metrics import agent_metrics, conversation_metrics, group_metrics, turn_metrics
from selfverify.tasks.answering import SECOND_TURN, SelfCorrection
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.policy.encoding import Prompt
    from selfverify.policy.policy import Policy
    from selfverify.rollouts.rollout import Rollout


Objective = Literal["surrogate", "likelihood", "pairwise"]


class MethodConfig(Config):
    """Options of a method; every method adds its own."""

    @property
    def needs_reference(self) -> bool:
        """Whether any channel has a KL term, so that a copy of the starting policy has to be kept."""
        return False

    @property
    def reads_scores(self) -> bool:
        """Whether credit needs the probabilities of all scores that could have been written."""
        return False

    def changed(self, option: str) -> bool:
        """Whether an option has another value than its default."""
        return bool(getattr(self, option) != type(self).model_fields[option].default)


StepCallback = Callable[[int, int, dict[str, float], dict[str, float]], None]
"""A function that is called after each step, with its number (from 1), how many steps there are as far as is
known, its metrics and its timings."""


@dataclass(frozen=True, slots=True)
class Training:
    """All that defines a training: a whole run, or one of the stages that a run consists of.

    Args:
        policy: The policy, which is trained in place.
        task: Gives problems and judges answers.
        method: Rolls out and gives credit. The problems are those of `Method.problem`.
        learner: Steps, learning rate, checkpoints.
        sampling: Group size, temperature.
        folder: Gets the logs and the checkpoints. Where a run has several stages, each has its own folder in
            the run's folder. The run's metrics.jsonl then holds the lines of all stages, and counts their
            steps through.
        seed: Decides problems and samples.
        resume: Whether what an earlier process left in ``folder`` is continued or removed.
        labels: Figures that are added to each of the stage's lines in the run's metrics.jsonl.
        replay: The folder of a run whose logged rollouts are learnt from; nothing is sampled then.
        evaluate: Called every ``log.evaluate_every`` steps. Its figures are logged as ``eval/...``.
        on_step: Called after each step by the first process.
    """

    policy: Policy
    task: Task
    method: Method
    learner: TrainerConfig
    sampling: SamplingConfig
    folder: Path
    seed: int = 0
    resume: bool = False
    labels: dict[str, float] = field(default_factory=dict)
    replay: Path | None = None
    evaluate: Callable[[Policy], dict[str, float]] | None = None
    on_step: StepCallback | None = None


class Method(ABC):
    """One algorithm. Each is one small class and never touches the trainer.

    `credit` is what a method must have. Everything else has a default, which suits a method that learns from
    a group of single-turn responses per problem.

    Attributes:
        name: The name in recipes.
        summary: Its purpose in one line.
        config_class: The class of its options; ``config`` is an instance of it.
        objective: The loss of its tokens: the clipped ``surrogate`` of reinforcement learning,
            ``likelihood``, or ``pairwise`` (DPO). A pairwise group is two trajectories, whose credits have
            the advantage 1 (chosen) and -1 (rejected) and as ``kl_coef`` DPO's beta.
        teaches_scores: Whether it needs a task that asks for scores.
        compares: Whether it compares the samples of one problem, so that it needs two or more of them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config_class: ClassVar[type[MethodConfig]]
    objective: ClassVar[Objective] = "surrogate"
    teaches_scores: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    config: MethodConfig

    def __init__(self, config: MethodConfig | None = None) -> None:
        self.config = self.config_class() if config is None else config

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Make the groups of one step, one per problem; ``seeds`` has one seed per problem.

        Raises:
            DataError: A problem cannot be encoded.
        """
        from selfverify.rollouts.policy_sampler import PolicySampler
        from selfverify.rollouts.rollout import rollout
        from selfverify.rollouts.score_reading import read_rollout_scores

        def begin(problem: Problem, seed: int) -> Episode:
            return self.open(task, problem, seed)

        rolled = rollout(
            PolicySampler(policy, sampling),
            task,
            problems,
            seeds,
            sampling.group_size,
            open_episode=begin,
            limits=self.limits,
        )
        if self.config.reads_scores:
            read_rollout_scores(policy, rolled, sampling.temperature)
        return rolled

    @property
    def measured(self) -> bool:
        """Whether a run measures the policy before and after: by default where it learns from its own samples
        by reinforcement. Supervised methods mostly make the policy that other runs start from."""
        return self.objective == "surrogate"

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that `credit` gives credits: by default the answer and the score behind it."""
        return (ANSWER, SCORE)

    @property
    def limits(self) -> RolloutLimits | None:
        """How long conversations may get; None, the default, leaves that to the task."""
        return None

    def open(self, task: Task, problem: Problem, seed: int) -> Episode:
        """Begin a conversation about a problem: by default the task's own, which a method may wrap."""
        return task.open(problem, seed)

    @abstractmethod
    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """Return what each channel of a group learns; ``valid`` [G] marks trajectories that take part."""

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Figures to log for one step; docs/metrics.md explains the default ones. Only agents' rewards have
        figures of agents."""
        return group_metrics(groups) | conversation_metrics(groups) | agent_metrics(groups)

    def problem(self, task: Task, seed: int, index: int) -> Problem:
        """Training problem ``index``; the same arguments give the same problem.

        Raises:
            DataError: There is no such problem, or its data cannot be used.
        """
        return task.problem("train", seed, index)

    def stages(self, run: Training) -> Iterator[Training]:
        """Yield the stages that a run trains in turn: by default the run itself, in one stage, for
        ``learner.epochs``.

        A stage has been trained to its end before the next one is asked for, so that a method can prepare a
        stage with the policy that the last stage trained. A run whose time is up asks for no more stages.

        Raises:
            ConfigError: The trainer is to make passes over problems of a task that never end.
        """
        learner = run.learner
        if learner.epochs is None:
            yield run
            return
        kept = None if learner.keep is None else read_verdicts(learner.keep)[1]
        problems = run.task.count("train") if kept is None else sum(not v.dropped for v in kept)
        if problems is None:
            raise ConfigError(
                f"learner.epochs={learner.epochs:g}: the problems of task {run.task.name} never end; "
                "leave it out, so that learner.steps says how long the run is"
            )
        yield replace(run, learner=learner.lasting(problems))

    def faults(self, learner: TrainerConfig, sampling: SamplingConfig) -> list[str]:
        """Return the settings with which the method cannot train, each with the reason.

        By default those are one sample per problem, for a method that compares samples; samples that are all
        equal; and rates of channels that it does not train.
        """
        faults = []
        if self.compares and sampling.group_size < 2:
            faults.append(f"sampling.group_size: {self.name} compares samples of one problem; use 2 or more")
        if sampling.temperature == 0 and sampling.group_size > 1:
            faults.append(
                "sampling.temperature=0 makes all samples of a group equal, so that nothing can be learnt "
                "from comparing them; use a temperature above 0"
            )
        if unknown := sorted(learner.optim.channel_rates.keys() - set(self.channels)):
            faults.append(
                f"learner.optim.channel_rates: {self.name} has no channel {unknown[0]!r}; it trains "
                f"{', '.join(self.channels)}"
            )
        return faults

    def evaluation_faults(self, evaluation: EvaluationConfig) -> list[str]:
        """Return the settings with which the trained policy cannot be measured, each with the reason; by
        default none."""
        return []


class ShownMethod(Method):
    """Learns from conversations that are shown; nothing is sampled from the policy."""

    objective: ClassVar[Objective] = "likelihood"

    def rollout(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> Rollout:
        """Write what is shown of each problem.

        Raises:
            ConfigError: The task cannot show it.
            DataError: A problem cannot be encoded, or what is shown of it cannot be learnt.
        """
        from selfverify.rollouts.rollout import Rollout

        prompts = policy.encode(problems)
        rows = zip(problems, prompts, seeds, strict=True)
        return Rollout(prompts, [Group(row[0], self.shown(policy, task, *row)) for row in rows])

    @abstractmethod
    def shown(
        self, policy: Policy, task: Task, problem: Problem, prompt: Prompt, seed: int
    ) -> list[Trajectory]:
        """Return the conversations that are shown of a problem."""


class PolicyGradientConfig(MethodConfig):
    """Options shared by methods that learn from group-relative rewards."""

    kl: float = Field(0.01, ge=0)
    """Coefficient of the KL to the reference policy (beta)."""

    format_weight: float = Field(0.1, ge=0)
    """What well-formed tags in the right order add to the answer's reward."""

    score_format_weight: float | None = Field(None, ge=0)
    """What a malformed score loses; None is `format_weight`."""

    scale_advantage: bool = True
    """Divide by the group's standard deviation (Eq. 1)."""

    @property
    def score_penalty(self) -> float:
        """The reward that a malformed score loses."""
        return self.format_weight if self.score_format_weight is None else self.score_format_weight

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0


def column(group: Group, name: str) -> torch.Tensor:
    """Return one named reward of a group, ``[G]`` float64; NaN where a lost trajectory has none."""
    return torch.tensor([_reward(t, name) for t in group.trajectories], dtype=torch.float64)


def quality(group: Group) -> torch.Tensor:
    """Return by what answers are told apart, ``[G]`` float64: the task's ``quality``, else ``answer``."""
    names = ["quality" if "quality" in t.rewards else "answer" for t in group.trajectories]
    rewards = [_reward(t, name) for t, name in zip(group.trajectories, names, strict=True)]
    return torch.tensor(rewards, dtype=torch.float64)


def _reward(trajectory: Trajectory, name: str) -> float:
    if name == "score_opened" and name not in trajectory.rewards and trajectory.finish != Finish.ERROR:
        raise ConfigError("this method teaches scores, and the task asks for none: set task.score=true")
    lost = trajectory.finish == Finish.ERROR and name not in trajectory.rewards
    return math.nan if lost else trajectory.rewards[name]


def scores(group: Group) -> torch.Tensor:
    """Return the scores that a group's responses wrote, ``[G]`` float64, NaN where there is none."""
    return torch.tensor(
        [t.scores.get("sampled", float("nan")) for t in group.trajectories], dtype=torch.float64
    )


class TwoTurnConfig(MethodConfig):
    """The request that the second turn answers."""

    second_turn: str = Field(SECOND_TURN, min_length=1)
    """What the second turn, and every further one, is asked."""


class TwoTurnMethod(Method):
    """Learns from two-turn trajectories; by default it samples groups of them and compares each group.

    Attributes:
        split_score: Whether the second turn's score is a segment of its own.
    """

    split_score: ClassVar[bool] = False
    compares = True
    config: TwoTurnConfig

    @property
    def channels(self) -> tuple[str, ...]:
        """The two turns, and the score where it is split off."""
        return (TURN_1, TURN_2, SCORE) if self.split_score else (TURN_1, TURN_2)

    @property
    def limits(self) -> RolloutLimits:
        """Two turns."""
        return RolloutLimits(turns=2)

    def open(self, task: Task, problem: Problem, seed: int) -> Episode:
        """A conversation in which the policy is asked to re-examine its answer."""
        words = task.ask_again(self.config.second_turn)
        return SelfCorrection(problem, task.tags, task.verdict, words, split_score=self.split_score)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the common figures and the figures of two turns."""
        return group_metrics(groups) | turn_metrics(groups)

    def evaluation_faults(self, evaluation: EvaluationConfig) -> list[str]:
        """Second turns that are not measured, or measured after another request.

        A method of supervised fine-tuning is mostly not measured at all, so it may leave them out.
        """
        faults = []
        words, asked = self.config.second_turn, evaluation.second_turn
        if asked is None and self.objective == "surrogate":
            faults.append(
                f"evaluation.second_turn: {self.name} trains second turns; measure them, too: {words!r}"
            )
        elif asked not in (None, words):
            faults.append(
                f"evaluation.second_turn: {asked!r} is not what {self.name} trains with "
                f"(method.second_turn: {words!r})"
            )
        return faults
