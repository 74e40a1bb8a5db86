"""Built-in tasks, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selfverify.errors import ConfigError
from selfverify.tasks.base import Task, TaskConfig
from selfverify.tasks.digits_locate import DigitsLocate, DigitsLocateConfig
from selfverify.tasks.digits_mix import DigitsMix, DigitsMixConfig
from selfverify.tasks.digits_pick import DigitsPick, DigitsPickConfig
from selfverify.tasks.digits_sum import DigitsSum, DigitsSumConfig
from selfverify.tasks.grounding import Grounding, GroundingConfig
from selfverify.tasks.math import Math, MathConfig
from selfverify.tasks.mobile import Mobile, MobileConfig
from selfverify.tasks.word_sums import WordSums, WordSumsConfig


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """How to build a task: its options' class, the class itself, one line for people."""

    config: type[TaskConfig]
    build: Any
    summary: str


TASKS: dict[str, TaskEntry] = {
    "digits-pick": TaskEntry(DigitsPickConfig, DigitsPick, "which K of the digits add up to T (discrete)"),
    "digits-sum": TaskEntry(DigitsSumConfig, DigitsSum, "the sum of the digits shown (discrete)"),
    "digits-locate": TaskEntry(DigitsLocateConfig, DigitsLocate, "the box of a digit (continuous, IoU)"),
    "digits-mix": TaskEntry(DigitsMixConfig, DigitsMix, "the three above in turn (for the cold start)"),
    "word-sums": TaskEntry(WordSumsConfig, WordSums, "arithmetic word problems, text only (discrete)"),
    "grounding": TaskEntry(
        GroundingConfig, Grounding, "the box an expression refers to, from data files (IoU)"
    ),
    "mobile": TaskEntry(MobileConfig, Mobile, "the next action on a phone, from data files (discrete)"),
    "math": TaskEntry(MathConfig, Math, "maths problems of a data file, short answers (discrete)"),
}


def make_task(name: str, **options: Any) -> Task:
    """The task called ``name``.

    Raises:
        ConfigError: No such task; the message lists the ones there are.
    """
    if name not in TASKS:
        raise ConfigError(f"there is no task {name!r}; tasks: {', '.join(TASKS)}")
    entry = TASKS[name]
    task: Task = entry.build(entry.config(**options))
    return task


__all__ = ["TASKS", "Task", "TaskConfig", "TaskEntry", "make_task"]
