"""What second turns do with first answers: whether they keep right ones more than wrong ones, and why.

Second turns that answer anew, without a look at the first, also keep right answers more often than wrong
ones: there are many ways to be wrong. Only what exceeds that (`redrawn`) is checking. And a group of samples
compares the answers to one problem, so that what pays in training depends on the rates *within* problems,
which differ less than the pooled ones: easy problems are kept and corrected, hard ones are neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfverify.core.errors import DataError
from selfverify.evaluation.metrics import by_problem
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.evaluation.statistics import Statistic, ratio, ratio_statistic
from selfverify.objectives import breakeven_gap
from selfverify.selection.rules import Floats, number_keys


@dataclass(frozen=True, slots=True, eq=False)
class TurnTable:
    """Two-turn samples as arrays, one row for each of P problems, one column for each of G samples.

    Args:
        first: ``[P, G]``, 1 where the first answer is right, else 0.
        second: ``[P, G]``, the same of the second answer.
        first_keys: int ``[P, G]``, equal inside a problem exactly for equal answers; -1 for unreadable ones.
        second_keys: int ``[P, G]``, numbered as the first ones.
    """

    first: Floats
    second: Floats
    first_keys: NDArray[np.int64]
    second_keys: NDArray[np.int64]

    @classmethod
    def from_samples(cls, samples: Sequence[StoredSample]) -> TurnTable:
        """Return stored samples as arrays.

        Raises:
            DataError: A sample has one turn, problems have different numbers of samples, or answers are
                boxes, of which no two are equal.
        """
        rows = [*by_problem(samples).values()]
        for sample in samples:
            if CORRECT_1 not in sample.rewards:
                raise DataError(
                    f"sample {sample.sample} of {sample.problem} has no second turn; measure with "
                    "evaluation.second_turn"
                )
        if len({len(row) for row in rows}) != 1:
            raise DataError("problems have different numbers of samples; every problem needs the same")
        if all(sample.key is None for sample in samples):
            raise DataError("no second answer has a key: boxes are never equal, so that none is kept")
        numbered = np.array([number_keys([*map(_first_key, row), *(s.key for s in row)]) for row in rows])
        keys = np.split(numbered, 2, axis=1)
        first = np.array([[sample.rewards[CORRECT_1] > 0 for sample in row] for row in rows], dtype=float)
        second = np.array([[sample.correct for sample in row] for row in rows], dtype=float)
        return cls(first, second, *keys)


def _first_key(sample: StoredSample) -> str | None:
    """The key of the first answer. A conversation without a second turn is stored without messages."""
    verdicts = [step.verdict for step in sample.steps if step.author == "policy"]
    return verdicts[0].key if verdicts and verdicts[0] is not None else None


def keeping(table: TurnTable) -> dict[str, Statistic]:
    """Return how second turns keep answers, as functions of problem weights.

    Returns:
        ``kept|right`` and ``kept|wrong``: the share of right, and of wrong, first answers that the second
        turn gives again; an unreadable one is not kept. ``keep_gap``: their difference. ``redrawn|right``,
        ``redrawn|wrong`` and ``redrawn_gap``: the same with the second turn of *another* sample of the
        problem in place of a sample's own, which has not seen its first answer; not there with one sample
        each.
    """
    right, wrong = table.first, 1 - table.first
    readable = table.first_keys >= 0
    kept = readable & (table.first_keys == table.second_keys)
    found = _pair("kept", kept, right, wrong) | {"keep_gap": _gap(kept, right, wrong)}
    samples = table.first.shape[1]
    if samples > 1:
        equal = readable[:, :, None] & (table.first_keys[:, :, None] == table.second_keys[:, None, :])
        redrawn = (equal.sum(-1) - kept) / (samples - 1)
        found |= _pair("redrawn", redrawn, right, wrong) | {"redrawn_gap": _gap(redrawn, right, wrong)}
    return found


def _pair(name: str, kept: Floats, right: Floats, wrong: Floats) -> dict[str, Statistic]:
    return {
        f"{name}|right": ratio_statistic((kept * right).sum(1), right.sum(1)),
        f"{name}|wrong": ratio_statistic((kept * wrong).sum(1), wrong.sum(1)),
    }


def _gap(kept: Floats, right: Floats, wrong: Floats) -> Statistic:
    shares = [ratio_statistic((kept * among).sum(1), among.sum(1)) for among in (right, wrong)]
    return lambda weights: shares[0](weights) - shares[1](weights)


def turn_rates(table: TurnTable, within: bool) -> tuple[Statistic, Statistic]:
    """k = P(second right | first right) and c = P(second right | first wrong), as functions of weights.

    Args:
        table: The samples.
        within: Rates inside problems: ``E[p (1 - p) k] / E[p (1 - p)]``, and c likewise, p, k and c being one
            problem's. With n_{ij} of its G samples of type i -> j these are ``sum n_11 n_0 / sum n_1 n_0``
            and ``sum n_01 n_1 / sum n_1 n_0``, whose sums run over pairs of a right and a wrong first answer
            and are unbiased above and below the line. Otherwise the pooled rates.
    """
    right = table.first.sum(1)
    wrong = table.first.shape[1] - right
    stayed, mended = (table.first * table.second).sum(1), ((1 - table.first) * table.second).sum(1)
    if within:
        return ratio_statistic(stayed * wrong, right * wrong), ratio_statistic(mended * right, right * wrong)
    return ratio_statistic(stayed, right), ratio_statistic(mended, wrong)


def breakeven_statistic(table: TurnTable, within: bool) -> Statistic:
    """`selfverify.objectives.breakeven_gap` at the samples' rates, for the rewards 1 and -1."""
    kept, corrected = turn_rates(table, within)
    unit = breakeven_gap(2.0, 1.0)  # the gap is this times k / c - 1
    return lambda weights: unit * (ratio(kept(weights), corrected(weights)) - 1)
