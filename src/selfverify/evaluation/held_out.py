"""The problems that an evaluation is over: where they end, and what becomes of those that cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from selfverify import ranks
from selfverify.errors import ConfigError, DataError
from selfverify.evaluation.config import EvaluationConfig
from selfverify.events import note
from selfverify.policy.encoding import Encoder
from selfverify.rollouts.types import Problem
from selfverify.tasks import Task
from selfverify.tasks.base import NotCounted, problem_count

logger = logging.getLogger(__name__)

NAMED = 10
"""Reasons that a summary lists."""


class HeldOut:
    """The problems of `EvaluationConfig.split`, by index.

    Args:
        task: Makes them.
        config: How many, and what to do about broken ones.
        encoder: Of the policy that is measured; None looks at no encoding.

    Raises:
        ConfigError: All are wanted of a task whose problems never end.
    """

    def __init__(self, task: Task, config: EvaluationConfig, encoder: Encoder | None = None) -> None:
        self.task, self.config, self.encoder = task, config, encoder
        known = problem_count(task, config.split)
        if known is None and config.problems is None:
            raise ConfigError(
                f"task {task.name} makes problems without end: set evaluation.problems to a number"
            )
        self.total: int = min(n for n in (known, config.problems) if n is not None)
        """Indices to look at; not all need be problems that can be used."""
        self._bad: dict[int, str] = {}
        self._not_counted: set[int] = set()

    def make(self, indices: Iterable[int]) -> dict[int, Problem]:
        """The problems with these indices that can be made and count.

        Raises:
            DataError: One cannot be made, and `EvaluationConfig.on_bad` is ``refuse``.
        """
        found = {}
        for index in indices:
            try:
                found[index] = self.task.problem(self.config.split, 0, index)
            except NotCounted:
                self._not_counted.add(index)
            except DataError as error:
                self._skip(index, error)
        return found

    def encodable(self, problems: Mapping[int, Problem], finished: Collection[str]) -> dict[int, Problem]:
        """Without those that cannot be encoded, where these are to be skipped. Finished ones could be."""
        if self.config.on_bad == "refuse" or self.encoder is None:
            return dict(problems)
        found = {}
        for index, problem in problems.items():
            try:
                if problem.id not in finished:
                    self.encoder.prompt(problem)
                found[index] = problem
            except DataError as error:
                self._skip(index, error)
        return found

    def _skip(self, index: int, error: DataError) -> None:
        if self.config.on_bad == "refuse":
            raise error
        if index not in self._bad:
            name = f"{self.task.name}/{self.config.split}#{index}"
            note(
                logger, "problem_skipped", f"a problem is left out: {error}", problem=name, reason=str(error)
            )
        self._bad[index] = str(error)

    def share_bad(self) -> Collection[int]:
        """Indices left out so far by any process. All have to call it."""
        for theirs in ranks.gather(self._bad):
            self._bad |= theirs
        return self._bad.keys()

    def left_out(self) -> dict[str, Any]:
        """``{"left_out": {"rows", "problems", "not_counted", "reasons"}}``; empty if nothing was.

        ``rows`` are those of the file that make no problem, ``problems`` those that cannot be made or
        encoded, ``not_counted`` those that the task's scoring leaves out by its rules.
        """
        rows = list(getattr(self.task, "broken", lambda split: [])(self.config.split))
        counts = {"rows": len(rows), "problems": len(self._bad), "not_counted": len(self._not_counted)}
        if not any(counts.values()):
            return {}
        reasons = [*rows, *(self._bad[index] for index in sorted(self._bad))]
        return {"left_out": {**counts, "reasons": reasons[:NAMED]}}

    def why(self) -> str:
        """Why nothing is left, in a sentence."""
        if self._bad:
            return f"none of {len(self._bad)} problems can be used; the first: {self._bad[min(self._bad)]}"
        return f"task {self.task.name} counts none of {len(self._not_counted)} problems"
