"""STaR (Zelikman et al. 2022, arXiv:2203.14465), as AdaPO's baseline (its Appendix B).

The model answers, is asked again for some rounds while its answer is wrong, and is fine-tuned on the
conversations that it corrected; all of it is repeated. The paper does not say which part of a corrected
conversation is learnt: here it is the last turn, behind the wrong turns that it corrects.

Every iteration is a stage of the run with a folder of its own: ``conversations.jsonl`` and what a training
writes. A run that was killed goes on where it was, in the middle of either part. The run's own
``events.jsonl`` tells what happened while conversations were sampled.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from selfverify.core import ranks
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import EVENTS_FILE, EventLog, note
from selfverify.core.jsonl_store import JsonlStore, StrictRow
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Author, Credit, Finish, Group, Segment, Trajectory
from selfverify.evaluation.samples import ResumableBatches, make_problems
from selfverify.methods.base import ShownMethod, Training, TwoTurnConfig, TwoTurnMethod
from selfverify.tasks.answering import SelfCorrection, turn_channel
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.policy.encoding import Prompt
    from selfverify.policy.policy import Policy

logger = logging.getLogger(__name__)

CONVERSATIONS_FILE = "conversations.jsonl"

Kept = tuple[int, Trajectory]
"""A training problem's index, and a conversation about it."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The stored fields of a `Segment`, which explains them."""

    channel: str
    tokens: list[int]
    text: str
    author: Author
    turn: int
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class Collected(StrictRow):
    """A line of `CONVERSATIONS_FILE`.

    Args:
        index: A training problem's index.
        conversations: The conversations about the problem that are worth learning from, segment by segment.
    """

    index: int
    conversations: list[list[StoredSegment]]


class STaRConfig(TwoTurnConfig):
    """How conversations are collected, and how long they are learnt from."""

    iterations: int = Field(2, ge=1)
    """Times that conversations are sampled and learnt from."""

    rounds: int = Field(2, ge=1)
    """Turns behind the first, as long as the answer is wrong."""

    problems: int = Field(1000, ge=1)
    """Training problems that each iteration samples, `sampling.group_size` times."""

    epochs: float = Field(2.0, gt=0)
    """Passes over an iteration's conversations; `learner.steps` at most."""


class STaR(ShownMethod, TwoTurnMethod):
    """See the module's docstring.

    Args:
        config: The options.
        kept: The conversations to learn from, which `stages` collects.
        seed: Decides in which order they are shown.
    """

    name = "star"
    summary = "collect what further turns correct, learn from it, repeat (STaR)"
    config_class = STaRConfig
    config: STaRConfig
    compares = False

    def __init__(self, config: STaRConfig | None = None, kept: Sequence[Kept] = (), seed: int = 0) -> None:
        super().__init__(config)
        self.kept, self.seed = kept, seed
        self._shown: dict[str, Trajectory] = {}

    def stages(self, run: Training) -> Iterator[Training]:
        """Per iteration, collect what the policy corrects, then learn from that.

        Raises:
            ConfigError: The folder holds conversations of other weights or settings, or ``learner.keep`` is
                set.
            DataError: A file is corrupt, or nothing was corrected that could be learnt from.
        """
        from selfverify.policy.decoding import derived_seed

        learner, events = run.learner, run.folder / EVENTS_FILE
        if learner.keep is not None:
            raise ConfigError(self._own_problems(learner))
        run.task.set_coordinate_space(run.policy.coordinate_space)
        if not run.resume:
            ranks.on_first(lambda: clear_iterations(run.folder))
        ranks.on_first(partial(JsonlStore, events))  # repairs it before others write to it
        for number in range(1, self.config.iterations + 1):
            folder, own = run.folder / f"iteration-{number}", derived_seed(run.seed, number)
            with EventLog(events, ranks.index()):
                kept = run.policy.whole(partial(self._collect_all, run, folder, own))
            yield replace(
                run,
                method=STaR(self.config, kept, own),
                learner=learner.lasting(len(kept), self.config.epochs),
                folder=folder,
                replay=None if run.replay is None else run.replay / folder.name,
                labels={"star/iteration": number},
            )

    def _collect_all(self, run: Training, folder: Path, own: int) -> list[Kept]:
        """Return conversations about all problems, in the problems' order; ``own`` seeds the samples."""
        from selfverify.policy.decoding import derived_seed

        config, policy, task, sampling = self.config, run.policy, run.task, run.sampling
        settings = {
            "weights": policy.fingerprint(),
            "task": task.name,
            "seed": run.seed,
            "sampling": sampling.model_dump(mode="json"),
            "method": config.model_dump(mode="json", include={"second_turn", "rounds"}),
        }
        path = folder / CONVERSATIONS_FILE
        sweep = ResumableBatches(
            path, Collected, settings, config.problems, run.learner.batch.micro_batch_groups
        )
        for share in sweep.shares():
            problems, unusable = make_problems(task, "train", run.seed, share, policy.encoder)
            for index, error in unusable.items():
                name, reason = f"{task.name}#{index}", str(error)
                note(logger, "problem_skipped", f"a problem is skipped: {error}", problem=name, reason=reason)
            seeds = [derived_seed(own, index) for index in problems]
            made = self.collect(policy, task, [*problems.values()], seeds, sampling) if problems else []
            found = dict(zip(problems, made, strict=True))
            sweep.store(
                Collected(index, [[_stored(s) for s in t.segments] for t in found.get(index, [])])
                for index in share
            )
        kept = [
            (index, Trajectory([Segment(**asdict(segment)) for segment in conversation]))
            for index in range(config.problems)
            for conversation in sweep.rows[index].conversations
        ]
        if not kept:
            raise DataError(
                f"{path}: in {config.problems} problems x "
                f"{sampling.group_size} conversations no answer was corrected, so that there is nothing to "
                "learn from; sample more (method.problems, sampling.group_size, method.rounds), or start "
                "from a model that corrects some"
            )
        return kept

    def collect(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> list[list[Trajectory]]:
        """Return for each problem the conversations that are worth learning from: their last answer is right.

        Conversations that were cut off, or whose answers have no verdict, are left out.
        """
        rollout = TwoTurnMethod.rollout(self, policy, task, problems, seeds, sampling)
        return [[t for t in group.trajectories if self._is_worth_it(t)] for group in rollout.groups]

    def _is_worth_it(self, trajectory: Trajectory) -> bool:
        rewards = trajectory.rewards
        if trajectory.truncated or trajectory.finish == Finish.ERROR:
            return False
        # Malformed text behind a right answer would be learnt, too.
        whole = rewards["correct"] > 0 and rewards.get("score_opened", 0.0) <= rewards.get(
            "score_format", 0.0
        )
        return whole and rewards["correct_1"] == 0

    @property
    def limits(self) -> RolloutLimits:
        """An answer, and all rounds."""
        return RolloutLimits(turns=1 + self.config.rounds)

    def open(self, task: Task, problem: Problem, seed: int) -> Episode:
        """A conversation that goes on while the answer is wrong."""
        words, rounds = task.ask_again(self.config.second_turn), self.config.rounds
        return SelfCorrection(problem, task.tags, task.verdict, words, rounds, while_wrong=True)

    def problem(self, task: Task, seed: int, index: int) -> Problem:
        """Return the problem of a conversation; each pass over the conversations has another order."""
        turn, place = divmod(index, len(self.kept))
        order = np.random.default_rng([self.seed, turn]).permutation(len(self.kept))
        chosen = int(order[place])
        number, conversation = self.kept[chosen]
        problem = task.problem("train", seed, number)
        # One problem may have several conversations.
        problem = replace(problem, id=f"{problem.id}/conversation-{chosen + 1}")
        self._shown[problem.id] = conversation
        return problem

    def shown(
        self, policy: Policy, task: Task, problem: Problem, prompt: Prompt, seed: int
    ) -> list[Trajectory]:
        """Return the conversation of a problem that `problem` made."""
        return [self._shown[problem.id]]

    @property
    def channels(self) -> tuple[str, ...]:
        """The turns behind the first, one of which is a conversation's last."""
        return tuple(turn_channel(turn) for turn in range(1, self.config.rounds + 1))

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        """1 for every token of a conversation's last turn."""
        last = [t.segments[-1].channel for t in group.trajectories]
        ones = torch.ones(len(last), dtype=torch.float64)
        return [
            Credit(channel, ones, valid=valid & torch.tensor([own == channel for own in last]))
            for channel in dict.fromkeys(last)
        ]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the mean number of rounds that it took to correct the answers of a step's conversations."""
        rounds = [t.segments[-1].turn for group in groups for t in group.trajectories]
        return {"star/rounds": float(np.mean(rounds))}

    def faults(self, learner: TrainerConfig, sampling: SamplingConfig) -> list[str]:
        """The default ones, another engine than our own, and a choice of problems."""
        faults = super().faults(learner, sampling)
        if sampling.engine != "own":
            faults.append(f"sampling.engine={sampling.engine}: {self.name} samples before it trains: own")
        if learner.epochs is not None:
            faults.append(f"learner.epochs: {self.name} has method.epochs, passes over what it has sampled")
        return faults if learner.keep is None else [*faults, self._own_problems(learner)]

    def _own_problems(self, learner: TrainerConfig) -> str:
        return f"learner.keep={learner.keep}: {self.name} samples the problems that it learns from itself"


def clear_iterations(output: Path) -> None:
    """Remove what an earlier run left."""
    for folder in output.glob("iteration-*"):
        shutil.rmtree(folder)


def _stored(s: Segment) -> StoredSegment:
    return StoredSegment(s.channel, s.tokens, s.text, s.author, s.turn, s.finish)
