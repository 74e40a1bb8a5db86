"""The problems of an evaluation: how many there are, and what becomes of those that cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.evaluation.sweep import make_problems
from selfverify.policy.encoding import Encoder
from selfverify.tasks.base import NotCounted, Task

logger = logging.getLogger(__name__)

NAMED = 10
"""A summary lists at most so many reasons."""


def measured_with(
    weights: str,
    task: Task,
    config: EvaluationConfig,
    max_new_tokens: int,
    more: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All that decides what an evaluation stores; a store goes on with the same alone.

    Args:
        weights: What tells the weights apart (`Policy.fingerprint`); of a served model its address.
        task: Its options count, too.
        config: What changes nothing that is stored is left out.
        max_new_tokens: Length limit of a response.
        more: What else decides it; its entries come last.
    """
    return {
        "task": task.name,
        "task_options": task.config.model_dump(mode="json"),
        "max_new_tokens": max_new_tokens,
        "weights": weights,
        **config.model_dump(exclude={"batch_problems", "on_bad", "score"}),
        **(more or {}),
    }


def sampling_of(
    config: EvaluationConfig, max_new_tokens: int, engine: Literal["own", "vllm"] = "own"
) -> SamplingConfig:
    """How an evaluation draws a problem's samples, each turn of at most so many tokens."""
    return SamplingConfig(
        group_size=config.samples,
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=max_new_tokens,
        engine=engine,
    )


class HeldOut:
    """The problems of `EvaluationConfig.split`, by index.

    Args:
        task: Makes the problems.
        config: How many problems there are, and what to do about broken ones.

    Raises:
        ConfigError: The configuration asks for all problems of a task whose problems never end.
    """

    def __init__(self, task: Task, config: EvaluationConfig) -> None:
        self.task, self.config = task, config
        known = task.count(config.split)
        if known is None and config.problems is None:
            raise ConfigError(
                f"task {task.name} makes problems without end: set evaluation.problems to a number"
            )
        self.total: int = min(n for n in (known, config.problems) if n is not None)
        """The number of indices. Some may be of problems that cannot be used."""
        self._made: dict[int, Problem] = {}
        self._broken: dict[int, str] = {}
        self._not_counted: set[int] = set()

    def make(self, indices: Iterable[int], encoder: Encoder | None = None) -> dict[int, Problem]:
        """Make the problems with these indices; returns those that can be used.

        A problem cannot be used if it cannot be made, if the task's scoring does not count it, or if the
        ``encoder`` cannot encode it.

        Raises:
            DataError: A problem cannot be used, and `EvaluationConfig.on_bad` is ``refuse``.
        """
        problems, unusable = make_problems(self.task, self.config.split, 0, indices, encoder)
        # Without their images: those of a whole benchmark may not fit into memory.
        self._made |= {index: replace(problem, images=[]) for index, problem in problems.items()}
        for index, error in unusable.items():
            if isinstance(error, NotCounted):
                self._not_counted.add(index)
            elif self.config.on_bad == "refuse":
                raise error
            elif index not in self._broken:
                self._broken[index] = str(error)
                name = f"{self.task.name}/{self.config.split}#{index}"
                message = f"a problem is left out: {error}"
                note(logger, "problem_skipped", message, problem=name, reason=str(error))
        return problems

    def share(self) -> None:
        """Tell all processes what each of them has made and left out. All processes have to call this."""
        for made, broken, not_counted in ranks.gather((self._made, self._broken, self._not_counted)):
            self._made |= made
            self._broken |= broken
            self._not_counted |= not_counted

    def known(self, indices: Iterable[int]) -> dict[int, Problem]:
        """Return the problems with these indices that some process has made, without their images."""
        return {index: self._made[index] for index in indices if index in self._made}

    def left_out(self) -> dict[str, Any]:
        """Count what was left out: ``{"left_out": {"rows", "problems", "not_counted", "reasons"}}``.

        ``rows`` counts rows of the data file that make no problem, ``problems`` counts problems that cannot
        be made or encoded, and ``not_counted`` those that the task's scoring does not count. The result is
        empty if nothing was left out.
        """
        rows = self.task.broken(self.config.split)
        counts = {"rows": len(rows), "problems": len(self._broken), "not_counted": len(self._not_counted)}
        if not any(counts.values()):
            return {}
        reasons = [*rows, *(self._broken[index] for index in sorted(self._broken))]
        return {"left_out": {**counts, "reasons": reasons[:NAMED]}}

    def why(self) -> str:
        """Say in a sentence why no problem is left."""
        if self._broken:
            first = self._broken[min(self._broken)]
            return f"none of {len(self._broken)} problems can be used; the first: {first}"
        return f"task {self.task.name} counts none of {len(self._not_counted)} problems"


def target_boxes(task: Task, problems: Iterable[Problem]) -> dict[str, Any] | None:
    """Return the true boxes by problem id; None for a task whose answers are no boxes."""
    return {problem.id: problem.target for problem in problems} if task.kind == "continuous" else None
