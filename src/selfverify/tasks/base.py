"""What a task is: where problems come from, what the answer format is, and how answers are rewarded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict

from selfverify.errors import DataError
from selfverify.rollouts.requests import SCORE_INSTRUCTION as SCORE_INSTRUCTION
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.types import Problem
from selfverify.tasks.canvas import Split


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= value[0] <= value[1]:
        raise ValueError(f"a range is [low, high] with 0 <= low <= high, not {list(value)}")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
"""Lowest and highest value of something that is drawn per problem; not negative."""


class TaskConfig(BaseModel):
    """Options of a task; every task adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


RULES = "rules"


@dataclass(frozen=True, slots=True)
class Judged:
    """What a task thinks of one answer.

    Args:
        reward: What the answer channel is paid, without any format part; 0 or more, in most tasks at most 1.
        correct: Whether it counts as right in accuracy, AUC and AP.
        answer: The parsed answer as a JSON value, None when it can't be read.
        key: Equal for equivalent answers; None when the answer can't be read.
        unjudged: Why there is no verdict (the judge hung twice, its data is gone); empty if there is one.
            Such a trajectory is neither right nor wrong: it takes no part in training. An answer that can be
            judged not to be one (malformed, far too long) is wrong instead.
        quality: What decides whether two answers contrast (ADPO Eq. 6 and 7) where that is not ``reward``.
        parts: Components by name, which become rewards of the trajectory beside ``answer`` and are logged as
            ``reward/NAME``: a mean over the answers that have it.
        read_by: Who read the answer: the task's `RULES`, or in evaluations an extractor's name.
    """

    reward: float
    correct: bool
    answer: Any = None
    key: str | None = None
    unjudged: str = ""
    quality: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    read_by: str = RULES


UNREADABLE = Judged(reward=0.0, correct=False)


@dataclass(slots=True)
class Demonstration:
    """A worked response for supervised fine-tuning: ``(channel, text)`` pieces in order.

    Pieces of channel ``context`` are read but never trained; that is how a wrong answer is shown
    without teaching it. ``quality`` is the reward the shown answer would get.
    """

    pieces: list[tuple[str, str]] = field(default_factory=list)
    quality: float = 1.0


@dataclass(frozen=True, slots=True)
class Metric:
    """A published figure of the answers that are chosen.

    Args:
        name: What it is called.
        part: The component it is of: one of `Judged.parts`, or of what the task's ``answer_parts`` gives.
        over: None for the mean of ``part`` over the answers that have it; else a component, and the figure is
            the sum of ``part`` over the sum of this one.
    """

    name: str
    part: str
    over: str | None = None


class NotCounted(DataError):
    """A problem that is whole, but that the task's scoring leaves out of its figures."""


class Task(Protocol):
    """Problems, their answers' format, and the reward. Implementations are one file each."""

    name: str
    kind: Literal["discrete", "continuous"]
    tags: tuple[str, ...]

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Problem ``index`` of a split; the same arguments give the same problem."""
        ...

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """Reward an answer. Never raises on model output; malformed answers earn 0.

        A task whose judging has something to count may have a method ``counters() -> dict[str, float]``
        besides; what it returns goes to timing.jsonl. One whose malformed answers have ``parts`` too may have
        ``unreadable(problem) -> Judged``; they are `UNREADABLE` otherwise. One that reads or writes places in
        images may have ``use_space(space)``: see `tell_space`. One for which judging is slow may have
        ``prepare(answers)``, called with all (problem, tagged) of a batch before each of them is judged.

        For evaluations a task may have ``metrics``, a tuple of `Metric`; ``answer_parts(problem, answers)``,
        the components ``[M]`` by name of canonical answers (boxes ``[M, 4]``, NaN where unreadable), also of
        those that nobody wrote but a vote; ``count(split) -> int``, where its problems end; and
        ``broken(split) -> list[str]``, rows of its files that make no problem.

        Raises:
            DataError: What answers are judged by cannot be read; as if ``unjudged``.
        """
        ...

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """A right (or plausibly wrong) response for the cold start, without its score."""
        ...


Space = Callable[[tuple[int, int]], tuple[int, int]]
"""From an image's (width, height) to those of the space in which the policy writes places in it."""


def tell_space(task: Task, space: Space) -> None:
    """Tell a task that reads or writes places how its policy writes them: `Policy.coordinate_space`.

    `learn` and `evaluate` do so. Whoever makes problems by hand does it first.
    """
    use_space = getattr(task, "use_space", None)
    if use_space is not None:
        use_space(space)


def problem_count(task: Task, split: Split) -> int | None:
    """How many problems a split has; None for a task that makes them without end."""
    count = getattr(task, "count", None)
    return None if count is None else int(count(split))


def problem_digest(problem: Problem) -> str:
    """Of what is asked, shown (the images' sizes) and wanted; not of the prompt, which policies differ in."""
    about = [problem.meta.get("question"), problem.target, [image.size for image in problem.images]]
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def problem_rng(split: Split, seed: int, index: int) -> np.random.Generator:
    """One independent stream per (split, seed, index), so that problems need no shared state."""
    return np.random.default_rng([{"train": 0, "validation": 1, "test": 2}[split], seed, index])


def user_turn(text: str, images: int = 1) -> list[dict[str, Any]]:
    """A one-turn conversation: the images, then the text."""
    content: list[dict[str, Any]] = [{"type": "image"} for _ in range(images)]
    return [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def read_integers(text: str, count: int, largest: int) -> list[int] | None:
    """Exactly ``count`` ASCII integers in [0, ``largest``], separated by spaces or commas, else None."""
    if len(text) > 16 * count:
        return None
    words: Sequence[str] = text.replace(",", " ").split()
    if len(words) != count or not all(w.isascii() and w.isdigit() and len(w) <= 4 for w in words):
        return None
    values = [int(word) for word in words]
    return values if max(values) <= largest else None
