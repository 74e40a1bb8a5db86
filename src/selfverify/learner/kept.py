"""Training on the problems that `selfverify data filter` has kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from selfverify.data.verdicts import Verdict, read_verdicts
from selfverify.errors import ConfigError, DataError
from selfverify.rollouts.types import Problem
from selfverify.tasks import Task
from selfverify.tasks.base import problem_count, problem_digest
from selfverify.tasks.rows import training_place


def judged_by(task: Task) -> dict[str, Any]:
    """The options that decide a task's training problems and what is right."""
    config = getattr(task, "config", None)
    if not isinstance(config, BaseModel):
        return {}
    return config.model_dump(mode="json", exclude={"validation", "test", "workers"})


class Kept:
    """The kept problems again and again, each pass in another order.

    Args:
        path: The verdicts.
        task: The task that they are about, which knows how its policy writes places (`tell_space`).

    Raises:
        ConfigError: They are unfinished, about another task or other data, or keep nothing.
        DataError: The file is corrupt.
    """

    def __init__(self, path: str, task: Task) -> None:
        self.path, self.task = path, task
        settings, verdicts = read_verdicts(path)
        if settings["task"] != task.name:
            raise ConfigError(f"{path} is about task {settings['task']}, this is {task.name}")
        count = problem_count(task, "train")
        if count != settings["count"]:
            raise ConfigError(
                f"{path} belongs to other data: of {settings['count']} training problems, where task "
                f"{task.name} has {count} now; filter these with `selfverify data filter`"
            )
        # Rows of files are compared one by one instead; the file may have moved.
        if count is None and judged_by(task) != settings["options"]:
            raise ConfigError(f"{path} is about task {task.name} with other options: {settings['options']}")
        self._seed: int = settings["seed"]
        self._kept = [verdict for verdict in verdicts if not verdict.dropped]
        if not self._kept:
            raise ConfigError(f"{path} keeps none of {len(verdicts)} problems")
        # One that is broken by now will be skipped; what is wanted here is the check.
        with contextlib.suppress(DataError):
            self._made(self._kept[0])

    def __len__(self) -> int:
        return len(self._kept)

    def problem(self, seed: int, index: int) -> Problem:
        """Problem ``index`` of a run with this seed.

        Raises:
            ConfigError: The data has changed since it was filtered.
            DataError: The problem cannot be made.
        """
        place, turn = training_place(seed, index, len(self._kept))
        problem = self._made(self._kept[place])
        return replace(problem, id=f"{problem.id}/pass-{turn + 1}") if turn else problem

    def _made(self, verdict: Verdict) -> Problem:
        problem = self.task.problem("train", self._seed, verdict.index)
        if (problem.id, problem_digest(problem)) != (verdict.problem, verdict.digest):
            what = "asks something else now" if problem.id == verdict.problem else f"is {problem.id} now"
            raise ConfigError(
                f"{self.path} belongs to other data: what was problem {verdict.problem} {what}; filter the "
                "data again with `selfverify data filter`"
            )
        return problem
