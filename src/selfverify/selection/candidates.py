"""Candidate answers: a single one as an object, N of them for each of many problems as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from selfverify.selection.rules import Floats, cluster_boxes


@dataclass(slots=True)
class Candidate:
    """One sampled answer to one problem, on its way from the sampler to the choice.

    Sampling for training has trajectories; whatever chooses, serves or shows answers has candidates.

    Args:
        answer: The parsed answer as a JSON value; None if it could not be read.
        key: The task's canonical form (`Verdict.key`): equal for equivalent answers. None for unreadable
            answers and for boxes, which are compared by IoU.
        score: What a verifier thinks of it, higher is better; None where there is no readable score.
        logprob: Mean log-probability of the answer's tokens, where there is one.
        tokens: Tokens it took to write.
        text: Everything that was written.
        first: The answer of the first of two turns, as ``answer`` is that of the second; None in one turn.
    """

    answer: Any = None
    key: str | None = None
    score: float | None = None
    logprob: float | None = None
    tokens: int = 0
    text: str = ""
    first: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N candidates of each of any number of problems, as arrays.

    Args:
        keys: int ``[..., N]``, equal inside a problem exactly for equal answers; -1 for unreadable ones. For
            boxes the number of the box's cluster.
        score: ``[..., N]``, NaN where there is none.
        boxes: ``[..., N, 4]``, NaN for unreadable answers; None unless the answers are boxes.
        correct: ``[..., N]`` in {0, 1}; known in analysis only.
    """

    keys: NDArray[np.int64]
    score: Floats
    boxes: Floats | None = None
    correct: Floats | None = None

    @classmethod
    def of(cls, candidates: Sequence[Candidate], iou: float = 0.5) -> Self:
        """Return the arrays ``[N]`` of one problem's candidates; ``iou`` decides which boxes share a cluster.

        Answers are boxes when no candidate has a key and every readable answer is a list of four numbers.
        """
        score = np.array([np.nan if c.score is None else c.score for c in candidates], dtype=np.float64)
        boxes = box_array([c.answer for c in candidates], [c.key for c in candidates])
        if boxes is not None:
            return cls(cluster_boxes(boxes, iou)[0], score, boxes)
        return cls(np.array(number_keys([c.key for c in candidates]), dtype=np.int64), score)

    def rows(self, rows: slice) -> Candidates:
        """Return the candidates of some of the problems."""
        arrays = (self.keys, self.score, self.boxes, self.correct)
        return Candidates(*(None if array is None else array[rows] for array in arrays))  # type: ignore[arg-type]

    def take(self, columns: NDArray[np.int64], iou: float = 0.5) -> Candidates:
        """Return some candidates of every problem: ``columns`` ``[S, n]`` makes ``[P, S, n]`` of ``[P, G]``.

        Boxes are clustered anew, since their order matters.
        """
        boxes = None if self.boxes is None else self.boxes[..., columns, :]
        return Candidates(
            self.keys[..., columns] if boxes is None else cluster_boxes(boxes, iou)[0],
            self.score[..., columns],
            boxes,
            None if self.correct is None else self.correct[..., columns],
        )


def number_keys(keys: Sequence[str | None]) -> list[int]:
    """Return keys as numbers in order of first appearance; -1 for None."""
    numbers: dict[str, int] = {}
    return [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]


def box_array(answers: Sequence[Any], keys: Sequence[str | None]) -> Floats | None:
    """Return answers as boxes ``[N, 4]``, NaN for unreadable ones; None if they are not boxes."""
    readable = [answer for answer in answers if answer is not None]
    if not readable or any(key is not None for key in keys) or not all(map(is_box, readable)):
        return None
    return np.array([[np.nan] * 4 if answer is None else answer for answer in answers], dtype=np.float64)


def is_box(answer: Any) -> bool:
    """Whether an answer is a list of four numbers."""
    return (
        isinstance(answer, (list, tuple))
        and len(answer) == 4
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in answer)
    )
