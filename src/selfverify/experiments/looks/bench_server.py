"""A benchmark answered by a model behind an OpenAI-compatible server, with and without looking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from selfverify.core.errors import DataError
from selfverify.core.journal import read_journal, write_journal
from selfverify.evaluation.sweep import Progress
from selfverify.experiments.looks.bench_row import COLUMNS, LEFT_OUT, BenchRow
from selfverify.experiments.looks.looks_folder import image_keeper
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task
from selfverify.experiments.teacher_settings import TeacherSettings
from selfverify.experiments.teaching import Asked, Lessons, School
from selfverify.looking.crop_hits import CROP_HIT
from selfverify.looking.look_episode import STEPS
from selfverify.rollouts.noted import Noted, noted_messages

CONVERSATIONS = "conversations.jsonl"
"""The journal of the conversations, in the output folder."""


def answered_by_server(
    recipe: Recipe, teacher: TeacherSettings, folder: Path, progress: Progress | None = None
) -> list[Lessons]:
    """Ask a server's model the questions of a recipe's task, and return all conversations.

    Called again, it goes on where it was stopped, and holds conversations again that were lost.

    Args:
        recipe: Names the task and the evaluation's settings.
        teacher: The server and its model.
        folder: Gets `CONVERSATIONS`, and the images that were shown.
        progress: Called after each batch.

    Raises:
        ConfigError: The folder holds conversations of other settings; the benchmark's file is not there; or
            the verifier cannot be loaded.
        DataError: The file cannot be read.
    """
    task, config = recipe_task(recipe, measured=True), recipe.evaluation
    task.check_files(config.split)
    count = task.count(config.split)
    total = min(n for n in (count, config.problems) if n is not None)
    keep, journal = image_keeper(folder), folder / CONVERSATIONS
    school = School(recipe, task, teacher, config.samples)
    settings = school.settings() | {"split": config.split, "problems": config.problems}
    if journal.is_file():
        found, rows = read_journal(journal, Lessons, warn=False)
        kept = [row for row in rows.values() if not any(told.lost for told in row.conversations)]
        if len(kept) < len(rows):
            write_journal(journal, Lessons, found, kept)

    def ask(index: int) -> Asked:
        problem = task.problem(config.split, 0, index)
        asked = noted_messages(problem, keep)
        about = {"categories": problem.meta.get("categories") or {}}
        return Asked(problem, lambda seed: Noted(task.open(problem, seed), asked, keep), about)

    return school.hold(journal, settings, ask, total, progress)


def row_of_server(name: str, rows: Sequence[Lessons]) -> BenchRow:
    """A row of conversations with a server; those that were lost are left out and counted.

    Args:
        name: What the row is called.
        rows: The conversations.

    Raises:
        DataError: There is no conversation; the message says why.
    """
    answered = [(row, [told for told in row.conversations if not told.lost]) for row in rows]
    answered = [(row, told) for row, told in answered if told]
    lost = [told.lost for row in rows for told in row.conversations if told.lost]
    if not answered:
        reasons = [*lost, *(row.unusable for row in rows if row.unusable), "the file has none"]
        raise DataError(f"no question of the benchmark was answered: {reasons[0]}")
    column = next((c for c in COLUMNS if any(c in row.about["categories"] for row, _ in answered)), None)
    right: list[float] = []
    tasks: dict[str, list[float]] = {}
    for row, told in answered:
        right.append(_mean([one.rewards.get("correct", 0.0) for one in told]))
        for value in row.about["categories"].get(column, ()):
            tasks.setdefault(value, []).append(right[-1])
    means = {task: _mean(values) for task, values in sorted(tasks.items())}
    counted = [mean for task, mean in means.items() if task not in LEFT_OUT]

    def figure(reward: str) -> float | None:
        per = [[one.rewards[reward] for one in told if reward in one.rewards] for _, told in answered]
        known = [_mean(values) for values in per if values]
        return _mean(known) if known else None

    accuracy = _mean(right)
    return BenchRow(
        name,
        accuracy,
        _mean(counted) if counted else accuracy,
        means,
        len(answered),
        figure(STEPS),
        figure(CROP_HIT),
        len(lost),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
