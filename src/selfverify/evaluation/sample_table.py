"""A sample set as arrays: P problems with G samples each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfverify.core.errors import DataError
from selfverify.evaluation.store import DECODINGS, StoredSample
from selfverify.selection.candidates import Candidates, box_array, number_keys
from selfverify.selection.rules import Floats


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Samples as arrays, one row per problem in order of first appearance, one column per sample.

    Args:
        problems: The P problem ids.
        keys: int ``[P, G]``, answers as numbers that are equal inside a problem exactly for equal answers;
            -1 for unreadable answers, and for all boxes.
        correct: ``[P, G]`` in {0, 1}.
        scores: Scores ``[P, G]`` by decoding or verifier, and ``logprob``; NaN where there is none.
        rewards: Rewards ``[P, G]`` by name; NaN where a sample has none of that name.
        boxes: ``[P, G, 4]``, NaN for unreadable answers; None unless the answers are boxes.
    """

    problems: list[str]
    keys: NDArray[np.int64]
    correct: Floats
    scores: dict[str, Floats]
    rewards: dict[str, Floats]
    boxes: Floats | None

    @classmethod
    def from_samples(cls, samples: Sequence[StoredSample], order: Sequence[str] | None = None) -> SampleTable:
        """Return ``samples`` as arrays, with rows in the given order of problem ids, if there is one.

        Answers count as boxes when no sample has a key and every readable answer is a list of four numbers.

        Raises:
            DataError: There are no samples, or problems have different numbers of them.
        """
        groups = by_problem(samples)
        if not groups:
            raise DataError("there are no samples to evaluate")
        problems = list(order) if order is not None else list(groups)
        rows = [groups[problem] for problem in problems]
        for problem, row in zip(problems, rows, strict=True):
            if len(row) != len(rows[0]):
                raise DataError(
                    f"problem {problem!r} has {len(row)} samples, but {problems[0]!r} has {len(rows[0])}; "
                    "every problem needs the same number"
                )

        def array(read: Callable[[StoredSample], float | None]) -> Floats:
            return np.array(
                [[np.nan if (value := read(s)) is None else float(value) for s in row] for row in rows]
            )

        decodings = dict.fromkeys([*DECODINGS, *(name for sample in samples for name in sample.scores)])
        scores = {name: array(lambda s, name=name: s.scores.get(name)) for name in decodings}  # type: ignore[misc]
        names = sorted({name for sample in samples for name in sample.rewards})
        ordered = [sample for row in rows for sample in row]
        boxes = box_array([sample.answer for sample in ordered], [sample.key for sample in ordered])
        return cls(
            problems=problems,
            keys=np.array([number_keys([sample.key for sample in row]) for row in rows]),
            correct=array(lambda s: s.correct),
            scores=scores | {"logprob": array(lambda s: s.logprob)},
            rewards={name: array(lambda s, name=name: s.rewards.get(name)) for name in names},  # type: ignore[misc]
            boxes=None if boxes is None else boxes.reshape(len(rows), -1, 4),
        )

    def reward(self, name: str) -> Floats:
        """The rewards ``[P, G]`` called ``name``, NaN where a sample has none."""
        return self.rewards.get(name, np.full(self.correct.shape, np.nan))

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


def by_problem(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    """Return each problem's samples, ordered by number; problems come in order of first appearance."""
    groups: dict[str, list[StoredSample]] = {}
    for sample in samples:
        groups.setdefault(sample.problem, []).append(sample)
    return {problem: sorted(rows, key=lambda sample: sample.sample) for problem, rows in groups.items()}
