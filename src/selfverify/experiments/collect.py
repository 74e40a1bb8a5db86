"""Trajectories of teachers: a scripted expert, or a model behind a server, does a task's training problems.

SmartSnap §4.1 has two teachers do all training tasks, with evidence. What was said is kept problem by problem
in a journal beside the output, so that a call which was killed goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.journal import STRICT
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.data.conversation_files import check_output, journal_of, write_conversations
from selfverify.evaluation.sweep import Progress, Sweep, make_problems
from selfverify.experiments.conversation_export import Keep, asked_messages
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task
from selfverify.experiments.teacher_settings import TeacherSettings
from selfverify.policy.sampling import derived_seed
from selfverify.remote.client import ServerSettings
from selfverify.serving.agent_speakers import OnServer, Script, Speaker, hold
from selfverify.tasks.base import Task
from selfverify.tasks.judged import worth_imitating

AT_ONCE = 16
"""Conversations at the same time, where the task does not say how many there may be."""


@dataclass(frozen=True, slots=True)
class Taught:
    """One conversation with a teacher.

    Args:
        messages: What was said.
        rewards: What came of it.
        lost: Why it broke off; empty where it did not.
    """

    __pydantic_config__: ClassVar = STRICT

    messages: list[dict[str, str]]
    rewards: dict[str, float] = field(default_factory=dict)
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Lessons:
    """A line of the journal.

    Args:
        index: A training problem's index.
        problem: Its id; empty where it could not be made.
        conversations: Those about it.
        unusable: Why it could not be made.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    problem: str
    conversations: list[Taught] = field(default_factory=list)
    unusable: str = ""


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
    teacher: TeacherSettings,
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
    if task.limits.turns == 1:
        raise ConfigError(
            f"task {task.name}: a conversation is over after the first answer; nothing to collect"
        )
    count = task.count("train")
    total = problems if count is None else min(problems, count)
    at_once = task.limits.at_once or AT_ONCE
    settings = {
        "task": task.name,
        "task_options": task.config.model_dump(mode="json"),
        "turns": task.limits.turns,
        "seed": recipe.seed,
        "samples": samples,
        "teacher": teacher.model_dump(mode="json", exclude={"timeout"}),
    }
    sweep = Sweep(journal_of(output), Lessons, settings, total, max(at_once // samples, 1), progress)
    with ThreadPoolExecutor(at_once, thread_name_prefix="teacher") as threads:
        for share in sweep.shares():
            made, unusable = make_problems(task, "train", recipe.seed, share)
            calls = [
                (
                    index,
                    threads.submit(
                        partial(_taught, task, problem, teacher, derived_seed(recipe.seed, index, n))
                    ),
                )
                for index, problem in made.items()
                for n in range(samples)
            ]
            told = [(index, call.result()) for index, call in calls]
            sweep.store(
                [Lessons(i, made[i].id, [found for index, found in told if index == i]) for i in made]
                + [Lessons(i, "", unusable=str(error)) for i, error in unusable.items()]
            )
    return _written(task, recipe, [sweep.rows[index] for index in sorted(sweep.rows)], output, keep)


class Noted(Episode):
    """An episode whose conversation is noted down as roles and texts.

    Args:
        inner: The episode.
        asked: The messages before it.
    """

    def __init__(self, inner: Episode, asked: Sequence[dict[str, str]]) -> None:
        self.inner, self.channel = inner, inner.channel
        self.messages = [*asked]
        self.ended: Ending | None = None

    def begin(self) -> Reply | None:
        """See `Episode`."""
        reply = self.inner.begin()
        if reply is not None:
            self._note(reply)
        return reply

    def reply(self, said: Said) -> Reply:
        """See `Episode`."""
        self.messages.append({"role": "assistant", "content": said.text})
        reply = self.inner.reply(said)
        if not reply.done and said.finish == Finish.STOP:
            self._note(reply)
        return reply

    def ending(self) -> Ending:
        """See `Episode`."""
        self.ended = self.inner.ending()
        return self.ended

    def close(self) -> None:
        """See `Episode`."""
        self.inner.close()

    def _note(self, reply: Reply) -> None:
        if reply.images:
            raise DataError("it shows images, and files of conversations hold text")
        self.messages.append({"role": reply.role, "content": reply.text})


def _taught(task: Task, problem: Problem, teacher: TeacherSettings, seed: int) -> Taught:
    """One conversation; whatever fails loses it."""
    noted = Noted(task.open(problem, seed), asked_messages(problem))
    try:
        hold(noted, _speaker(task, problem, teacher, seed), task.limits.turns)
    except ConfigError:
        raise
    except SelfVerifyError as error:
        return Taught(noted.messages, lost=str(error)[:2000])
    finally:
        noted.close()
    assert noted.ended is not None
    return Taught(noted.messages, noted.ended.rewards)


def _speaker(task: Task, problem: Problem, teacher: TeacherSettings, seed: int) -> Speaker:
    if teacher.server is None:
        return Script([turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(seed))])
    server = ServerSettings(teacher.server, timeout_s=teacher.timeout)
    return OnServer(problem, server, teacher.fields(seed))


def _written(task: Task, recipe: Recipe, rows: Sequence[Lessons], output: Path, keep: Keep) -> Collection:
    found = Collection()
    wanted: Callable[[Taught], bool] = {
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
                elif wanted(told) and _whole(told):
                    found.written += 1
                    yield _line(task, recipe, row, number, told)

    try:
        write_conversations(output, conversations())
    except DataError as error:
        lost = f"; the first of {found.lost} that were lost: {found.reason}" if found.lost else ""
        held = f"{found.conversations} conversations, {found.correct} of them right{lost}"
        raise DataError(f"{output}: {error}; held: {held}. {journal_of(output)} has them all") from None
    return found


def _whole(told: Taught) -> bool:
    """Whether something was said in every turn, also in the last one."""
    own = [message["content"].strip() for message in told.messages if message["role"] == "assistant"]
    return all(own) and told.messages[-1]["role"] == "assistant"


def _line(task: Task, recipe: Recipe, row: Lessons, number: int, told: Taught) -> dict[str, Any]:
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
