"""Models of tools: loaded on first use, once for a process, and asked for several things at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from selfverify.tasks.tool_calls import ToolError

Q = TypeVar("Q")
R = TypeVar("R")

_lock = threading.Lock()
_shared: dict[Hashable, Batched[Any, Any]] = {}


class Batched(Generic[Q, R]):
    """Asks a model that works on lists. Who comes while it works waits, and goes in together next.

    Args:
        load: Loads the model and returns what asks it. It is called once, when the first question comes.
        most: How many questions it is asked at a time.
    """

    def __init__(self, load: Callable[[], Callable[[list[Q]], Sequence[R]]], most: int = 16) -> None:
        self.load, self.most = load, most
        self._ask: Callable[[list[Q]], Sequence[R]] | None = None
        self._failed: str = ""
        self._working = threading.Lock()
        self._line = threading.Lock()
        self._waiting: list[tuple[Q, Future[R]]] = []
        self.asked: list[int] = []
        """How many questions went in together, each time."""

    def __call__(self, questions: Sequence[Q]) -> list[R]:
        """The answers, in order.

        Raises:
            ToolError: The model cannot be loaded; it is not tried again.
            Exception: Whatever the model raises for one of the questions.
        """
        own: list[Future[R]] = [Future() for _ in questions]
        with self._line:
            self._waiting += zip(questions, own, strict=True)
        while not all(future.done() for future in own):
            with self._working:
                self._work()
        return [future.result() for future in own]

    def _work(self) -> None:
        """Answer those who have waited longest."""
        with self._line:
            some, self._waiting = self._waiting[: self.most], self._waiting[self.most :]
        if not some:
            return
        try:
            answers = self._answers([question for question, _ in some])
        except Exception as error:
            if len(some) == 1:
                some[0][1].set_exception(error)
                return
            # One bad question must not spoil the others.
            for question, future in some:
                try:
                    future.set_result(self._answers([question])[0])
                except Exception as its_own:
                    future.set_exception(its_own)
            return
        for (_, future), answer in zip(some, answers, strict=True):
            future.set_result(answer)

    def _answers(self, questions: list[Q]) -> Sequence[R]:
        if self._failed:
            raise ToolError(self._failed)
        if self._ask is None:
            try:
                self._ask = self.load()
            except Exception as error:
                self._failed = f"its model cannot be loaded: {type(error).__name__}: {error}"[:500]
                raise ToolError(self._failed) from error
        self.asked.append(len(questions))
        answers = self._ask(questions)
        if len(answers) != len(questions):
            raise RuntimeError(f"the model has given {len(answers)} answers to {len(questions)} questions")
        return answers


def shared(
    key: Hashable, load: Callable[[], Callable[[list[Q]], Sequence[R]]], most: int = 16
) -> Batched[Q, R]:
    """The model of this name in this process; it is loaded when the first question comes.

    Args:
        key: Says which model it is, with all that its answers depend on.
        load: See `Batched`.
        most: See `Batched`.
    """
    with _lock:
        if key not in _shared:
            _shared[key] = Batched(load, most)
        return _shared[key]
