"""Tasks make problems, say which form an answer has, and reward answers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from pydantic import AfterValidator

from selfverify.core.config import Config, RolloutLimits
from selfverify.core.episode import Call, Episode, RolloutHook
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.problem import SPLITS, Problem, Split
from selfverify.core.tags import ANSWER_INSTRUCTION, SCORE_TAG, Tagged
from selfverify.core.tags import SCORE_INSTRUCTION as SCORE_INSTRUCTION
from selfverify.core.trajectory import ANSWER, CONTEXT
from selfverify.tasks.answering import UNREADABLE as UNREADABLE
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.answering import Verdict as Verdict


@dataclass(frozen=True, slots=True)
class Mark:
    """The place that a call touches, in pixels of the screen.

    Args:
        kind: How it touches.
        x: Where the finger comes down.
        y: The same, from above.
        box: The element that is touched; None where that is not known, as of a swipe.
        to: Where a swipe ends.
    """

    kind: Literal["tap", "long_press", "swipe"]
    x: int
    y: int
    box: tuple[int, int, int, int] | None = None
    to: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A screen, and what the next call touches on it.

    Args:
        image: The screen, RGB.
        mark: None at the end, before calls that touch nothing, and where there was nothing to be touched.
    """

    image: Image
    mark: Mark | None


logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= value[0] <= value[1]:
        raise ValueError(f"a range is [low, high] with 0 <= low <= high, not {list(value)}")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
"""The range of a number that is drawn for each problem: its lowest and its highest value, both 0 or more."""


class TaskConfig(Config):
    """Options of a task; every task adds its own."""


class ScoredTaskConfig(TaskConfig):
    """Options of a task that asks for a score behind each answer, as ADPO needs it."""

    score: bool = True
    """Ask for a score behind the answer. Without it the prompt and the tags have none, and no format of one
    is paid: the twin that GRPO and methods without scores are compared on."""


@dataclass(slots=True)
class Demonstration:
    """A worked response for supervised fine-tuning.

    Args:
        pieces: The response's parts in order, each as ``(channel, text)``. Parts of channel ``context`` are
            read but never trained, so that a wrong answer can be shown without being taught.
        quality: The reward that the shown answer would get.
    """

    pieces: list[tuple[str, str]] = field(default_factory=list)
    quality: float = 1.0

    @classmethod
    def of(cls, head: str, rest: str, wrong: bool, quality: float) -> Demonstration:
        """Return a demonstration of two pieces; the first is context if the response is ``wrong``."""
        return cls([(CONTEXT if wrong else ANSWER, head), (ANSWER, rest)], quality)


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """A turn of a demonstrated conversation.

    Args:
        text: The policy's words, without the token that ends a turn.
        taught: Whether it is to be learnt. A mistake that a later turn mends is shown and not taught.
    """

    text: str
    taught: bool = True


@dataclass(frozen=True, slots=True)
class DemonstratedConversation:
    """A conversation that goes on from a problem, as one side of a preference.

    Args:
        texts: The policy's words, turn by turn, without the tokens that end turns.
        episode: Replies to it.
    """

    texts: Sequence[str]
    episode: Episode


EVERY = "every"
"""The component (`Metric`) that is 1 for every answer, also for unreadable ones."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A published figure of the answers that are chosen.

    Args:
        name: The figure's name.
        part: The component that is averaged: one of `Verdict.parts`, or of what `Task.answer_parts` returns.
        over: None for the mean of ``part`` over the answers that have it; else a component, and the figure is
            the sum of ``part`` over the sum of this one. `EVERY` is 1 for each answer, also for lost ones.
        needs: A component and a number: the figure is given only where the component's mean reaches it.
    """

    name: str
    part: str
    over: str | None = None
    needs: tuple[str, float] | None = None


class NotCounted(DataError):
    """A problem that is whole, but that the task's scoring leaves out of its figures."""


Space = Callable[[tuple[int, int]], tuple[int, int]]
"""From an image's (width, height) to those of the space in which the policy writes places in it."""


class Task(ABC):
    """Problems, the format of their answers, and the reward. Each task is a file of its own.

    `problem` and `judge` are what a task must have. Everything else has a default, which suits a task that
    makes its problems itself, without end, and whose answers hold no places in images.

    Attributes:
        name: The name in recipes; the ids of its problems begin with it.
        summary: The question, in one line.
        config_class: The class of the task's options; ``config`` is an instance of it.
        kind: Whether two answers are either equal or not (``discrete``), or overlap more or less
            (``continuous``: boxes, which majority votes then cluster).
        tags: The tags that a response consists of, in order, with ``score`` last.
        metrics: Published figures besides accuracy that evaluations compute.
        errors: The classes of wrong answers (`Verdict.error`), for figures by class. Unreadable answers are a
            class of their own, which is not named here.
        writes_places: Whether prompts or answers hold places in images, so that `set_coordinate_space` has
            to be called before problems are made.
        limits: How long its conversations may get.
        repeatable: Whether an episode always replies the same to the same words, whenever and wherever it is
            asked. Where it does not, training logs what was said (``learner.checkpoint.rollout_log``).
        judges: Whether it knows which answers are right.
        packages: Packages that judging wants, by the names of the extras that bring them.
    """

    name: str
    summary: str
    config_class: ClassVar[type[TaskConfig]] = TaskConfig
    kind: Literal["discrete", "continuous"] = "discrete"
    tags: tuple[str, ...] = ("think", "answer", SCORE_TAG)
    metrics: tuple[Metric, ...] = ()
    errors: tuple[str, ...] = ()
    writes_places: bool = False
    limits: RolloutLimits = RolloutLimits(turns=1)
    repeatable: bool = True
    judges: bool = True
    packages: ClassVar[Mapping[str, str]] = {}
    config: TaskConfig

    def __init__(self, config: TaskConfig | None = None) -> None:
        self.config = self.config_class() if config is None else config
        if isinstance(self.config, ScoredTaskConfig) and not self.config.score:
            self.tags = tuple(tag for tag in self.tags if tag != SCORE_TAG)

    @property
    def request(self) -> str:
        """ADPO's request for the answer's format, with a score where the task asks for one."""
        return SCORE_INSTRUCTION if SCORE_TAG in self.tags else ANSWER_INSTRUCTION

    def ask_again(self, words: str) -> str:
        """Return the request of a second turn (AdaPO Eq. 1), by default ``words`` as they are.

        A task whose answers have a form that a model may have forgotten by then names it here again.
        """
        return words

    @abstractmethod
    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Return problem ``index`` of a split; the same arguments give the same problem.

        Raises:
            DataError: There is no such problem, or its data cannot be used. Training skips it.
            NotCounted: The problem is whole, but the task's scoring leaves it out.
        """

    def posed(
        self, split: Split, seed: int, index: int, question: str, target: Any, *images: Image, **meta: Any
    ) -> Problem:
        """Return problem ``index`` of a task that makes its problems itself.

        Its one turn shows the images, then the question, then ADPO's request for the answer's format.
        ``meta`` is added to the problem's own.
        """
        return Problem(
            id=f"{self.name}/{split}/{seed}/{index}",
            messages=user_turn(f"{question} {self.request}", len(images)),
            images=list(images),
            target=target,
            meta={**meta, "question": question},
        )

    @abstractmethod
    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward an answer. A malformed answer earns 0; no output of a model raises an error.

        Raises:
            DataError: The data by which answers are judged cannot be read. The answer then counts as
                ``unjudged``.
        """

    def open(self, problem: Problem, seed: int) -> Episode:
        """Begin a conversation about a problem: by default one that is over after the first answer.

        Args:
            problem: The problem.
            seed: Decides everything that is random in the episode.
        """
        return SingleTurn(problem, self.tags, self.verdict)

    def hook(self) -> RolloutHook | None:
        """Return a hook that follows this task's conversations and measures their turns; by default
        nothing."""
        return None

    def verdict(self, problem: Problem, tagged: Tagged) -> Verdict:
        """The verdict on an answer; one whose tags are malformed earns nothing.

        Where there is none (``unjudged``, or `judge` raises a DataError) the log says for which problem.
        """
        if not tagged.answer_ok:
            return self.unreadable(problem)
        try:
            judged = self.judge(problem, tagged)
        except DataError as error:
            judged = Verdict(0.0, False, unjudged=str(error))
        if judged.unjudged:
            reason = judged.unjudged
            message = f"problem {problem.id}: an answer could not be judged: {reason}"
            note(logger, "unjudged", message, problem=problem.id, reason=reason)
        return judged

    def text_rules(self, problem: Problem, tagged: Tagged) -> dict[str, float]:
        """Return by name whether a well-formed answer passes rules on its words alone: 1 passes, 0 does not.

        Evaluations report how well a choice by them does, beside the model's own score. There are none by
        default.
        """
        return {}

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Return a right (or plausibly wrong) response for the cold start, without its score.

        Raises:
            ConfigError: The task has no demonstrations, which is the default.
        """
        raise ConfigError(f"task {self.name} has no demonstrations to learn from")

    def recheck(self, problem: Problem, tagged: Tagged, rng: np.random.Generator) -> str:
        """Return a second turn, without its score, that checks the first one by what stands in it.

        An answer that passes is given again, be it right or wrong; behind one that fails stands a right one.
        The check must be one that the policy can make: of the question and of the words, not of the target's
        secrets.

        Args:
            problem: The problem.
            tagged: The first turn.
            rng: Draws the answer that is given instead.

        Raises:
            ConfigError: The task has no such check, which is the default.
        """
        raise ConfigError(f"task {self.name} has no check to demonstrate; use method.source=demonstrated")

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """Return all that the policy would say in one conversation with the episode of this problem.

        Raises:
            ConfigError: The task has no demonstrated conversations, which is the default.
        """
        raise ConfigError(f"task {self.name} has no demonstrated conversations to learn from")

    def demonstrate_pair(self, problem: Problem) -> tuple[DemonstratedConversation, DemonstratedConversation]:
        """Return two conversations about a problem, the better one first.

        Raises:
            ConfigError: The task has no preferences, which is the default.
        """
        raise ConfigError(f"task {self.name} has no preferences to learn from")

    def prepare(self, answers: Sequence[tuple[Problem, Tagged]]) -> None:
        """See all answers of a batch before `judge` is called for each of them.

        A task whose judging is slow works on the whole batch here. By default nothing happens.
        """

    def unreadable(self, problem: Problem) -> Verdict:
        """Return the verdict on a response whose tags are malformed."""
        return UNREADABLE

    def set_coordinate_space(self, space: Space) -> None:
        """Learn how the policy writes places in images (`Policy.coordinate_space`).

        `learn` and `evaluate` call this; code that makes problems by hand calls it first.
        """

    def set_policy(self, policy: object) -> None:
        """Learn which `selfverify.policy.policy.Policy` answers, where the task lets it judge its own work.

        `learn` and `evaluate` call this.
        """

    def set_cache_folder(self, folder: Path) -> None:
        """Learn where to keep what should not be asked for twice, also by a run that is killed and resumed.

        A run and an evaluation with a store call this with their folder, before they ask for anything.
        """

    def count(self, split: Split) -> int | None:
        """Return the number of a split's problems; None if they never end."""
        return None

    def check_files(self, split: Split) -> None:
        """Open the split's data file, if one is set, so that a missing one shows before a model is loaded.

        Raises:
            ConfigError: The file is missing; the message names the setting.
            DataError: The file cannot be read.
        """

    def broken(self, split: Split) -> list[str]:
        """Return the rows of the split's file that make no problem, each with its place and what is wrong."""
        return []

    def answer_parts(self, problem: Problem, answers: Floats) -> dict[str, Floats]:
        """Return components ``[M]`` of M canonical answers by name, also of answers that a vote made.

        Args:
            problem: The problem.
            answers: Boxes ``[M, 4]``, NaN where an answer is unreadable.
        """
        return {}

    @classmethod
    def frames(cls, target: Any, calls: Sequence[Call]) -> Sequence[Frame] | None:
        """Draw a stored conversation with an environment: its screens before the first and after each call.

        Reports show them. By default there are none.

        Args:
            target: The problem's, as the store keeps it; nothing of it is trusted.
            calls: The calls that the environment has answered, in their order.
        """
        return None

    def counters(self) -> dict[str, float]:
        """Return what judging has counted so far (timeouts, restarts), for timing.jsonl."""
        return {}


def problem_rng(split: Split, seed: int, index: int, *more: int) -> np.random.Generator:
    """Return a random generator of this problem's own, so that problems need no shared state.

    A problem that draws several things apart from each other gives each of them a number in ``more``.
    """
    return np.random.default_rng([SPLITS.index(split), seed, index, *more])


def user_turn(text: str, images: int = 1) -> list[dict[str, Any]]:
    """Return a conversation of one turn: the images, then the text."""
    content: list[dict[str, Any]] = [{"type": "image"} for _ in range(images)]
    return [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def judge_integer(target: int, tagged: Tagged, largest: int) -> Verdict:
    """Reward an answer by 1 if it is the ``target``, else by 0.

    An answer is unreadable unless it is one integer from 0 to ``largest`` and nothing else.
    """
    read = read_integers(tagged.fields.get("answer", ""), 1, largest)
    if read is None:
        return UNREADABLE
    correct = read[0] == target
    return Verdict(float(correct), correct, read[0], str(read[0]))


def read_integers(text: str, count: int, largest: int) -> list[int] | None:
    """Return ``count`` ASCII integers from 0 to ``largest``, separated by spaces or commas.

    Returns None for anything else.
    """
    if len(text) > 16 * count:
        return None
    words: Sequence[str] = text.replace(",", " ").split()
    if len(words) != count or not all(w.isascii() and w.isdigit() and len(w) <= 4 for w in words):
        return None
    values = [int(word) for word in words]
    return values if max(values) <= largest else None
