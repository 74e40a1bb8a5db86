"""A sample set as arrays: P problems with G samples each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.errors import DataError
from selfverify.evaluation.store import CORRECT_1, DECODINGS, Sample
from selfverify.selection.candidates import Candidates, box_array, number_keys

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Samples as arrays, one row per problem in order of first appearance, one column per sample.

    Args:
        problems: The P problem ids.
        keys: int ``[P, G]``, answers as numbers that are equal inside a problem exactly for equal answers;
            -1 for unreadable answers, and for all boxes.
        correct: ``[P, G]`` in {0, 1}.
        scores: By decoding or verifier, and ``logprob``, ``[P, G]``; NaN where there is none.
        format: ``[P, G]``, the format reward; NaN where the task has none.
        correct_1: ``[P, G]`` of the first of two turns; NaN where there is one turn.
        boxes: ``[P, G, 4]``, NaN for unreadable answers; None unless the answers are boxes.
    """

    problems: list[str]
    keys: NDArray[np.int64]
    correct: Floats
    scores: dict[str, Floats]
    format: Floats
    correct_1: Floats
    boxes: Floats | None

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], order: Sequence[str] | None = None) -> SampleTable:
        """Arrays of ``samples``; rows in the given order of problem ids, if there is one.

        Answers count as boxes when no sample has a key and every readable answer is a list of four numbers.

        Raises:
            DataError: There are no samples, or problems have different numbers of them.
        """
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.problem, []).append(sample)
        if not groups:
            raise DataError("there are no samples to evaluate")
        problems = list(order) if order is not None else list(groups)
        rows = [sorted(groups[problem], key=lambda sample: sample.sample) for problem in problems]
        for problem, row in zip(problems, rows, strict=True):
            if len(row) != len(rows[0]):
                raise DataError(
                    f"problem {problem!r} has {len(row)} samples, but {problems[0]!r} has {len(rows[0])}; "
                    "every problem needs the same number"
                )
        names = dict.fromkeys([*DECODINGS, *(name for sample in samples for name in sample.scores)])
        scores = {name: _array(rows, lambda s, name=name: s.scores.get(name)) for name in names}
        ordered = [sample for row in rows for sample in row]
        boxes = box_array([sample.answer for sample in ordered], [sample.key for sample in ordered])
        return cls(
            problems=problems,
            keys=np.array([number_keys([sample.key for sample in row]) for row in rows]),
            correct=_array(rows, lambda s: s.correct),
            scores=scores | {"logprob": _array(rows, lambda s: s.logprob)},
            format=_array(rows, lambda s: s.rewards.get("format")),
            correct_1=_array(rows, lambda s: s.rewards.get(CORRECT_1)),
            boxes=None if boxes is None else boxes.reshape(len(rows), -1, 4),
        )

    def candidates(self, score: str) -> Candidates:
        """The samples as candidates ``[P, G]`` with the scores of that name.

        Boxes have no clusters yet; `Candidates.take` makes them.
        """
        return Candidates(self.keys, self.scores[score], self.boxes, self.correct)

    def targets(self, by_problem: Mapping[str, Sequence[float]]) -> Floats:
        """The true boxes ``[P, 4]`` in row order.

        Raises:
            DataError: A problem has no target.
        """
        missing = [problem for problem in self.problems if problem not in by_problem]
        if missing:
            raise DataError(f"no target box for {len(missing)} problems, such as {missing[:3]}")
        return np.array([by_problem[problem] for problem in self.problems], dtype=np.float64)


def _array(rows: list[list[Sample]], read: Any) -> Floats:
    """``[P, G]`` of what ``read`` takes from each sample; None becomes NaN."""
    return np.array([[np.nan if (value := read(s)) is None else float(value) for s in row] for row in rows])
