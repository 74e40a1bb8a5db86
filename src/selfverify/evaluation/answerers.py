"""Who answers the problems of an evaluation or a filter: a policy here, or a model behind a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.jsonl_store import Row
from selfverify.core.problem import Problem
from selfverify.evaluation.extraction import Extractor, make_extractor
from selfverify.evaluation.sweep import ResumableBatches
from selfverify.evaluation.talk_figures import note_time
from selfverify.policy.encoding import Encoder
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout, roll_out
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.tasks.base import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedProblems:
    """What an answerer is asked.

    Args:
        task: Opens the conversations and judges answers.
        problems: The problems by index.
        seeds: Their seeds by index.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        second_turn: A request to re-examine every answer; None for the task's own conversations.
        retries: How often a lost conversation is held again at most.
        store: Beside which it is noted how long conversations took; None notes nothing.
        scores: Whether the scores behind answers are read in all ways, or as they were written alone.
    """

    task: Task
    problems: Mapping[int, Problem]
    seeds: Mapping[int, int]
    sampling: SamplingConfig
    second_turn: str | None = None
    retries: int = 0
    store: Path | None = None
    scores: bool = True


MakeRows = Callable[[Sequence[int], Rollout], list[Row]]
"""Makes the rows of the problems with these indices from a rollout about them."""


class Answerer(ABC):
    """Answers problems, and says what of it tells its answers from those of others."""

    encoder: Encoder | None = None
    """Refuses problems that cannot be encoded; None where nobody here encodes them."""
    image_backend: str = ""
    """See `Policy.image_backend`."""

    def check(self, config: EvaluationConfig) -> None:
        """Refuse an evaluation that cannot be had of it; by default none.

        Raises:
            ConfigError: The settings are such.
        """

    @abstractmethod
    def introduce(self, task: Task) -> None:
        """Tell a task who answers.

        Raises:
            ConfigError: It is not known how places in images are written, and the task has such.
        """

    @abstractmethod
    def weights(self) -> str:
        """What tells the weights apart. All processes have to call this."""

    @abstractmethod
    def extractor(self, path: str) -> Extractor:
        """The second reader of answers that a configuration names."""

    def whole(self, work: Callable[[], T]) -> T:
        """Do some work with whole weights."""
        return work()

    @abstractmethod
    def answer(self, asked: AskedProblems, sweep: ResumableBatches[Row], make_rows: MakeRows[Row]) -> None:
        """Answer a share of a sweep, and store the rows. All processes have to call this."""


class PolicyAnswerer(Answerer):
    """A policy of this process."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.encoder = policy.encoder
        self.image_backend = policy.image_backend

    def introduce(self, task: Task) -> None:
        """See `Answerer`."""
        task.set_coordinate_space(self.policy.coordinate_space)
        task.set_policy(self.policy)

    def weights(self) -> str:
        """See `Answerer`: the fingerprint."""
        return self.policy.whole(self.policy.fingerprint)

    def extractor(self, path: str) -> Extractor:
        """See `Answerer`: a model of this library, or the policy itself."""
        return make_extractor(path, self.policy)

    def whole(self, work: Callable[[], T]) -> T:
        """See `Answerer`."""
        return self.policy.whole(work)

    def answer(self, asked: AskedProblems, sweep: ResumableBatches[Row], make_rows: MakeRows[Row]) -> None:
        """See `Answerer`. The share is answered as one batch, and its scores are read in all ways."""

        def made() -> list[Row]:
            if not asked.problems:
                return []
            problems, seeds = [*asked.problems.values()], [asked.seeds[index] for index in asked.problems]
            rollout = roll_out(
                self.policy, asked.task, problems, seeds, asked.sampling, asked.second_turn, asked.retries
            )
            if asked.store is not None and rollout.seconds and ranks.index() == 0:
                note_time(asked.store, len(problems) * asked.sampling.group_size, rollout.seconds)
            if asked.scores:
                read_rollout_scores(self.policy, rollout, as_written=True)
            return make_rows([*asked.problems], rollout)

        sweep.store(ranks.everywhere(made))
