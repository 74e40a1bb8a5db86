"""Training on the problems that `selfverify data filter` has kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.data.preferences import FilterVerdict, read_verdicts
from selfverify.tasks.base import Task
from selfverify.tasks.row_task import training_place


def judged_by(task: Task) -> dict[str, Any]:
    """Return the options that decide a task's training problems and which answers are right."""
    return task.config.model_dump(mode="json", exclude={"validation", "test", "workers"})


class FilteredProblems:
    """The problems that a file of verdicts keeps, in passes. Each pass has another order.

    Args:
        path: The file of verdicts.
        task: The task that the verdicts are about. It has to know how its policy writes places
            (`Task.set_coordinate_space`).

    Raises:
        ConfigError: The verdicts are unfinished, are about another task or other data, or keep no problem.
        DataError: The file is corrupt.
    """

    def __init__(self, path: str, task: Task) -> None:
        self.path, self.task = path, task
        settings, verdicts = read_verdicts(path)
        if settings["task"] != task.name:
            raise ConfigError(f"{path} is about task {settings['task']}, this is {task.name}")
        count = task.count("train")
        if count != settings["count"]:
            raise ConfigError(
                f"{path} belongs to other data: of {settings['count']} training problems, where task "
                f"{task.name} has {count} now; filter these with `selfverify data filter`"
            )
        # A data file may have moved, so its options may differ. Its problems are compared one by one instead.
        if count is None and judged_by(task) != settings["options"]:
            raise ConfigError(f"{path} is about task {task.name} with other options: {settings['options']}")
        self._seed: int = settings["seed"]
        self._kept = [verdict for verdict in verdicts if not verdict.dropped]
        if not self._kept:
            raise ConfigError(f"{path} keeps none of {len(verdicts)} problems")
        # Compares the first problem at once. If its data is broken by now, training will skip it.
        with contextlib.suppress(DataError):
            self._made(self._kept[0])

    def __len__(self) -> int:
        return len(self._kept)

    def problem(self, seed: int, index: int) -> Problem:
        """Make problem ``index`` of a run with this seed.

        Raises:
            ConfigError: The data has changed since it was filtered.
            DataError: The problem cannot be made.
        """
        place, turn = training_place(seed, index, len(self._kept))
        problem = self._made(self._kept[place])
        return replace(problem, id=f"{problem.id}/pass-{turn + 1}") if turn else problem

    def _made(self, verdict: FilterVerdict) -> Problem:
        problem = self.task.problem("train", self._seed, verdict.index)
        if (problem.id, problem.digest()) != (verdict.problem, verdict.digest):
            what = "asks something else now" if problem.id == verdict.problem else f"is {problem.id} now"
            raise ConfigError(
                f"{self.path} belongs to other data: what was problem {verdict.problem} {what}; filter the "
                "data again with `selfverify data filter`"
            )
        return problem
