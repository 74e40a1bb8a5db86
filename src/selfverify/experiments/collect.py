"""Trajectories of teachers: a scripted expert, or a model behind a server, does a task's training problems.

SmartSnap §4.1 has two teachers do all training tasks, with evidence (`teaching` holds the conversations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.conversations import check_output, journal_of, write_conversations
from selfverify.evaluation.samples import Progress
from selfverify.experiments.conversation_export import Keep, asked_messages
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task
from selfverify.experiments.teacher_settings import TeacherConfig
from selfverify.experiments.teaching import Asked, TaughtConversation, TaughtProblem, Teaching, at_most, whole
from selfverify.rollouts.wrappers import RecordingEpisode
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.base import Task


@dataclass(slots=True)
class Collection:
    """What a collection has come to.

    Args:
        conversations: How many were held.
        written: How many of them are in the output.
        lost: How many broke off.
        correct: How many came to a right end.
        reason: Why the first of those that were lost broke off.
    """

    conversations: int = 0
    written: int = 0
    lost: int = 0
    correct: int = 0
    reason: str = ""


def collect(
    recipe: Recipe,
    teacher: TeacherConfig,
    output: Path,
    problems: int,
    samples: int = 1,
    keep: Keep = "correct",
    progress: Progress | None = None,
) -> Collection:
    """Hold conversations with a teacher about a recipe's training problems, and write those worth learning.

    Args:
        recipe: Names the task; its seed decides the problems.
        teacher: Who teaches.
        output: The file, ``.parquet`` or ``.jsonl``; ``OUTPUT.journal`` beside it has everything.
        problems: How many problems, at most those that the task has.
        samples: Conversations about each.
        keep: Which of them are written.
        progress: Called after each batch of problems.

    Raises:
        ConfigError: The task has no demonstrations or no conversations, the output cannot be written, or the
            journal is that of other settings.
        DataError: Nothing is worth learning.
    """
    check_output(output)
    task = recipe_task(recipe)
    total, school = at_most(task, problems), Teaching(recipe, task, teacher, samples)

    def ask(index: int) -> Asked:
        problem = task.problem("train", recipe.seed, index)
        return Asked(
            problem, lambda seed: RecordingEpisode(task.open(problem, seed), asked_messages(problem))
        )

    held = school.hold(journal_of(output), school.settings(), ask, total, progress)
    return _written(task, recipe, held, output, keep)


def _written(
    task: Task, recipe: Recipe, rows: Sequence[TaughtProblem], output: Path, keep: Keep
) -> Collection:
    found = Collection()
    wanted: Callable[[TaughtConversation], bool] = {
        "all": lambda told: True,
        "correct": lambda told: worth_imitating(told.rewards),
        "judged": lambda told: told.rewards.get("judged_success", 0) > 0,
    }[keep]

    def conversations() -> Iterator[dict[str, Any]]:
        for row in rows:
            for number, told in enumerate(row.conversations):
                found.conversations += 1
                found.correct += worth_imitating(told.rewards)
                if told.lost:
                    found.lost, found.reason = found.lost + 1, found.reason or told.lost
                elif wanted(told) and whole(told):
                    found.written += 1
                    yield _line(task, recipe, row, number, told)

    try:
        write_conversations(output, conversations())
    except DataError as error:
        lost = f"; the first of {found.lost} that were lost: {found.reason}" if found.lost else ""
        held = f"{found.conversations} conversations, {found.correct} of them right{lost}"
        raise DataError(f"{output}: {error}; held: {held}. {journal_of(output)} has them all") from None
    return found


def _line(
    task: Task, recipe: Recipe, row: TaughtProblem, number: int, told: TaughtConversation
) -> dict[str, Any]:
    problem = task.problem("train", recipe.seed, row.index)
    return {
        "messages": told.messages,
        "tools": problem.tools,
        "id": f"{row.problem}#{number}",
        "data_source": task.name,
        "category": str(problem.meta.get("category") or ""),
        "reward": told.rewards.get("answer", 0.0),
        "correct": told.rewards.get("correct", 0) > 0,
    }
