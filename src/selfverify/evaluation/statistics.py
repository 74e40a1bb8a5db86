"""Statistics of sample sets: values, how sure they are, and whether two differ.

A statistic is a function from *weights* of problems ``[B, P]`` to values ``[B]``: how often each problem
counts, with its samples. Its error is estimated by the jackknife, from the values without each problem in
turn, so that means, ratios of sums and areas under curves are treated alike. K training seeds on the same P
problems are a table of K rows and P columns, in which a cell's figure is the sum of random effects of the
seed, of the problem, of both together, and of drawing the samples. The last two cannot be told apart, and
need not be:

    Var(mean over seeds) = problems / P + seeds / K + rest / (K P).

The variance over problems of the means over seeds holds the first and the last part, the variance of the
seeds' means the second and the last. The last would count twice and is taken off once (as by Cameron,
Gelbach and Miller, 2011). For the difference of two sides on the same problems the first variance is that
of the differences, so that problems which are hard for both do not count; each side adds its own seeds.

The quantile is Student's t. The problems' degrees of freedom are P - 1, or fewer where few problems decide
(by the kurtosis of their changes, and of areas by how many have a right answer, or a wrong one); the sides'
seeds have Satterthwaite's; and between the two stands the mean that is weighted by their variances (Cochran
and Cox, 1950; to the power `_POWER`), for Satterthwaite's alone covers 88 % with two seeds: that they are
alike by chance does not say how sure that is. By simulation intervals cover 93 to 97 % with three seeds and
more, and 92 to 98 % with two, which make them wide: two seeds tell no more
(`tests/evaluation/test_coverage.py`). One seed tells nothing of how training varies; its interval is about
that trained model, on other problems and with other samples.

Shares have Wilson's interval, at the number of independent answers that their variance amounts to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit

from selfverify.selection.rules import Floats

LEVEL = 0.95
"""Of intervals."""

_POWER = 1.2
"""Of the weights of seeds. With two seeds 1 covers 94 to 98 %, this 93 to 97 %, 1.5 from 92 %."""

_LEAST = 1e-30
"""Smaller probabilities are told as this."""

_NOTHING = 1e-18
"""A variance that is rounding alone."""

_EDGE = 1e-12
"""Shares are 0 or 1 that are nearer to it."""

_BLOCK = 128
"""How many weightings are evaluated at once. It bounds the memory of statistics that expand weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """A figure of P problems.

    Args:
        of: From weights ``[B, P]`` to values ``[B]``; NaN where weights leave it undefined.
        used: ``[P]``, the problems that take part.
        share: Whether values are between 0 and 1 by their nature.
        decided_by: How many problems decide it at most; None where all that take part may.
    """

    of: Callable[[Floats], Floats]
    used: NDArray[np.bool_]
    share: bool = True
    decided_by: int | None = None

    def on_all(self) -> float:
        """Return the value on all problems as they are; NaN where it is undefined."""
        return float(self.of(np.ones((1, len(self.used))))[0])


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A figure of one trained model.

    Args:
        value: The figure; NaN where it is undefined.
        changes: ``[P]``, the figure minus what it is without each problem; 0 for those that take no part, NaN
            where it is undefined without one.
        used: ``[P]``, the problems that take part.
        share: Whether it is between 0 and 1 by its nature.
        decided_by: See `Statistic`.
    """

    value: float
    changes: Floats
    used: NDArray[np.bool_]
    share: bool = False
    decided_by: int | None = None

    def __sub__(self, other: Measured) -> Measured:
        """The difference of two figures of one model, or of models of the same seed, on the same problems."""
        few = min((one.decided_by for one in (self, other) if one.decided_by is not None), default=None)
        used = self.used | other.used
        return Measured(self.value - other.value, self.changes - other.changes, used, decided_by=few)


def measure(statistic: Statistic) -> Measured:
    """Return a statistic on all problems, and what each of them changes."""
    value, places = statistic.on_all(), np.flatnonzero(statistic.used)
    changes = np.zeros(len(statistic.used))
    for start in range(0, len(places), _BLOCK):
        without = places[start : start + _BLOCK]
        weights = np.ones((len(without), len(changes)))
        weights[np.arange(len(without)), without] = 0.0
        changes[without] = value - statistic.of(weights)
    return Measured(value, changes, statistic.used, statistic.share, statistic.decided_by)


def on_shared(one: Measured, other: Measured) -> Measured:
    """Return a figure that is a mean over problems, as it is over those that take part in both."""
    values = one.value + np.nan_to_num(one.changes) * (one.used.sum() - 1)
    return measure(mean_statistic(np.where(one.used & other.used, values, np.nan)))


@dataclass(frozen=True, slots=True)
class _Error:
    """How much a figure varies: the parts of its variance, and their degrees of freedom."""

    problems: float
    problem_degrees: float
    seeds: float
    seed_degrees: float

    @property
    def variance(self) -> float:
        return self.problems + self.seeds

    def quantile(self, tail: float) -> float:
        """The quantile that the figure exceeds with the probability ``tail``, in standard errors."""
        found = -float(stdtrit(self.problem_degrees, tail))
        if self.seeds > 0:
            share = (self.seeds / self.variance) ** _POWER
            # As a sum: far tails are so large at one degree of freedom that a difference loses the other.
            found = (1 - share) * found - share * float(stdtrit(self.seed_degrees, tail))
        return found


def _error(*sides: Sequence[Measured]) -> _Error | None:
    """The error of the first side's mean over seeds, minus the second's; None of fewer than two problems.

    It is also None where a figure is undefined without one of its problems.
    """
    used = np.any([one.used for side in sides for one in side], axis=0)
    count = int(used.sum())
    moved = [np.stack([one.changes[used] for one in side]) for side in sides]
    if count < 2 or any(np.isnan(changes).any() for changes in moved):
        return None
    mean = moved[0].mean(0) - (moved[1].mean(0) if len(moved) > 1 else 0.0)
    unbiased = (count - 1) / count
    squares = float((mean**2).sum())
    kurtosis = count * float((mean**4).sum()) / squares**2 if squares else 0.0
    few = min([count, *(one.decided_by for side in sides for one in side if one.decided_by is not None)])
    degrees = max(1.0, min(few - 1, 2 * (count - 1) / max(2.0, kurtosis - 1)))
    problems, seeds = unbiased * squares, []
    for side, changes in zip(sides, moved, strict=True):
        k, differ = len(side), float(np.var([one.value for one in side], ddof=int(len(side) > 1)))
        if differ > _NOTHING:  # seeds level by chance say nothing of their variance: nothing is taken off
            problems -= unbiased * float(((changes - changes.mean(0)) ** 2).sum()) / (k * (k - 1))
            seeds.append((differ / k, k - 1))
    total = sum(variance for variance, _ in seeds)
    of_seeds = total**2 / sum(variance**2 / own for variance, own in seeds) if total else 1.0
    return _Error(max(problems, 0.0), degrees, total, of_seeds)


def interval(runs: Sequence[Measured]) -> list[float] | None:
    """Return the 95 % interval of the mean of a figure over K training seeds.

    It is None where nothing varies, and where one problem decides whether the figure is defined.
    """
    value, error = float(np.mean([one.value for one in runs])), _error(runs)
    if error is None or math.isnan(value):
        return None
    share = all(one.share for one in runs)
    spread = max(0.0, value * (1 - value))
    if share and spread < _EDGE:
        # Seen on all problems, or on none: as sure as one answer to each of them makes it.
        answers, reach = (
            float(error.problem_degrees + 1),
            -float(stdtrit(error.problem_degrees, (1 - LEVEL) / 2)),
        )
    elif error.variance < _NOTHING:
        return None
    else:
        reach = error.quantile((1 - LEVEL) / 2)
        answers = spread / error.variance
    if not share:
        return [value - reach * math.sqrt(error.variance), value + reach * math.sqrt(error.variance)]
    doubt = reach**2 / answers
    middle, half = value + doubt / 2, reach * math.sqrt((spread + doubt / 4) / answers)
    return [max(0.0, (middle - half) / (1 + doubt)), min(1.0, (middle + half) / (1 + doubt))]


def compare(own: Sequence[Measured], other: Sequence[Measured] = ()) -> dict[str, Any]:
    """Compare a figure of two methods on the same problems.

    Args:
        own: The figure of each of K seeds; or, without ``other``, the differences of models of the same seed.
        other: The figure of each of the other method's L seeds, which are independent of the first.

    Returns:
        ``difference``, the first minus the second; its 95 % ``interval``; and ``p`` of no difference,
        two-sided, for this comparison alone. The last two are None where nothing varies by which it could be
        judged, or where one problem decides whether the figure is defined.
    """
    sides = [side for side in (own, other) if side]
    values = [float(np.mean([one.value for one in side])) for side in sides]
    found = values[0] - sum(values[1:])
    error = _error(*sides)
    if error is None or error.variance < _NOTHING:
        return {"difference": found, "interval": None, "p": None}
    deviation = math.sqrt(error.variance)
    reach, far = error.quantile((1 - LEVEL) / 2) * deviation, abs(found) / deviation
    tail = _LEAST
    if error.quantile(tail) > far:
        logs = (math.log(_LEAST), math.log(0.5))
        tail = math.exp(brentq(lambda log: error.quantile(math.exp(log)) - far, *logs, xtol=1e-7))
    return {"difference": found, "interval": [found - reach, found + reach], "p": min(1.0, 2 * tail)}


def ratio(above: Floats, below: Floats) -> Floats:
    """``above / below``, NaN where ``below`` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def mean_statistic(per_problem: ArrayLike, signed: bool = False) -> Statistic:
    """Return the mean over problems of a value per problem ``[P]``; problems with NaN take no part.

    Values within 0 and 1 are taken for shares, but for those that could be negative (``signed``).
    """
    values = np.asarray(per_problem, dtype=np.float64)
    defined = ~np.isnan(values)
    return ratio_statistic(np.where(defined, values, 0.0), defined, signed)


def ratio_statistic(above: ArrayLike, below: ArrayLike, signed: bool = False) -> Statistic:
    """Return the sum over problems of one value per problem ``[P]``, divided by the sum of another."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    share = not signed and bool(((above >= 0) & (above <= below + 1e-9)).all())
    return Statistic(lambda weights: ratio(weights @ above, weights @ below), below != 0, share)


def within_problem_auc(score: ArrayLike, correct: ArrayLike) -> Floats:
    """AUC of each problem ``[P]`` among its own G samples; NaN without a scored right and a scored wrong one.

    That is the share of (right, wrong) pairs in which the right answer has the higher score, ties counting
    one half. The figure reported as within-problem AUC is its mean over the mixed problems, every problem
    counting the same, however many pairs it has: best-of-N decides once per problem, too.

    Args:
        score: ``[P, G]``; NaN where a sample has no score.
        correct: ``[P, G]`` in {0, 1}.
    """
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    scored = ~np.isnan(score)
    right, wrong = scored & (correct > 0.5), scored & (correct <= 0.5)
    pair = right[:, :, None] & wrong[:, None, :]
    first, second = score[:, :, None], score[:, None, :]
    wins = (pair * ((first > second) + 0.5 * (first == second))).sum((1, 2))
    return ratio(wins, pair.sum((1, 2)))


def auc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """Area under the ROC curve pooled over all samples ``[P, G]``; samples without a score take no part.

    It rewards knowing which *problems* are hard as much as knowing which *answers* are right:
    `within_problem_auc` has what selection can use.
    """
    counts = _threshold_counts(score, correct)

    def statistic(weights: Floats) -> Floats:
        hits, misses = counts(weights)
        beaten = (misses[:, -1:] - misses) + 0.5 * np.diff(misses, axis=-1, prepend=0.0)
        wins = (np.diff(hits, axis=-1, prepend=0.0) * beaten).sum(-1)
        return ratio(wins, hits[:, -1] * misses[:, -1])

    return Statistic(statistic, _scored(score), decided_by=_lesser(score, correct))


def average_precision_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """Average precision pooled over all samples ``[P, G]``, as scikit-learn defines it (no interpolation)."""
    counts = _threshold_counts(score, correct)

    def statistic(weights: Floats) -> Floats:
        hits, misses = counts(weights)
        seen = hits + misses
        precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
        area = (precision * np.diff(hits, axis=-1, prepend=0.0)).sum(-1)
        # Without any wrong sample average precision is 1 for all scores: nothing was measured.
        return np.where(misses[:, -1] > 0, ratio(area, hits[:, -1]), np.nan)

    return Statistic(statistic, _scored(score), decided_by=_lesser(score, correct))


def _scored(score: ArrayLike) -> NDArray[np.bool_]:
    """Which problems ``[P]`` have an answer with a score."""
    return np.asarray((~np.isnan(np.asarray(score, dtype=np.float64))).any(-1), dtype=np.bool_)


def _lesser(score: ArrayLike, correct: ArrayLike) -> int:
    """How many problems have a scored right answer, or a scored wrong one: the fewer of both.

    An area is no surer than these make it, however many problems there are.
    """
    scored, right = ~np.isnan(np.asarray(score, dtype=np.float64)), np.asarray(correct) > 0.5
    return min(int((scored & kind).any(-1).sum()) for kind in (right, ~right))


def ranking_statistics(score: ArrayLike, correct: ArrayLike) -> dict[str, Statistic]:
    """Return ``auc``, ``ap`` and ``within_problem_auc`` of scores ``[P, G]``."""
    return {
        "auc": auc_statistic(score, correct),
        "ap": average_precision_statistic(score, correct),
        "within_problem_auc": mean_statistic(within_problem_auc(score, correct)),
    }


def _threshold_counts(score: ArrayLike, correct: ArrayLike) -> Callable[[Floats], tuple[Floats, Floats]]:
    """From weights ``[B, P]``, right and wrong samples ``[B, T]`` with at least the t-th highest score.

    Equal scores are one threshold. Without any score there is one threshold that no sample reaches.
    """
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    owner, column = np.nonzero(~np.isnan(score))
    order = np.argsort(-score[owner, column], kind="stable")
    owner, column = owner[order], column[order]
    right, ranked = correct[owner, column] > 0.5, score[owner, column]
    ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True)) if len(ranked) else np.zeros(0, dtype=int)

    def counts(weights: Floats) -> tuple[Floats, Floats]:
        if not len(ends):
            return np.zeros((len(weights), 1)), np.zeros((len(weights), 1))
        expanded = weights[:, owner]
        hits = np.cumsum(expanded * right, axis=-1)[:, ends]
        return hits, np.cumsum(expanded, axis=-1)[:, ends] - hits

    return counts


def turn_shares(first: ArrayLike, second: ArrayLike) -> dict[str, Floats]:
    """Return the shares ``[...]`` of answers ``[..., N]`` that the second turn kept, corrected or spoiled.

    Args:
        first: ``[..., N]``, whether each first answer is right.
        second: ``[..., N]``, whether the second is.

    Returns:
        ``acc@t1``, ``acc@t2`` and ``delta`` = acc@t2 - acc@t1; ``0->0``, ``0->1``, ``1->0`` and ``1->1``, so
        that ``delta`` = ``0->1`` - ``1->0`` (the paper's M_0->1, effective correction, and M_1->0,
        misjudgment).
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    kinds = {f"{i:d}->{j:d}": ((before == i) & (after == j)).mean(-1) for i in (0, 1) for j in (0, 1)}
    accuracies = {"acc@t1": before.mean(-1), "acc@t2": after.mean(-1)}
    return accuracies | {"delta": kinds["0->1"] - kinds["1->0"], **kinds}


def transitions(first: ArrayLike, second: ArrayLike) -> dict[str, float]:
    """Return the `turn_shares` of N answers, ``corrected`` and ``spoiled``.

    ``corrected`` is the share of the wrong first answers that became right, ``spoiled`` the share of the
    right first answers that became wrong; each is left out where there are no such first
    answers. Without answers there is nothing.
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if before.size == 0:
        return {}
    found = {name: float(share) for name, share in turn_shares(before, after).items()}
    if not before.all():
        found["corrected"] = float(after[~before].mean())
    if before.any():
        found["spoiled"] = float((~after[before]).mean())
    return found


def turn_statistics(first: ArrayLike, second: ArrayLike) -> dict[str, Statistic]:
    """Return the figures of `transitions`, named ``turns.*``, as functions of problem weights.

    Args:
        first: ``[P, G]``, whether each first answer is right.
        second: ``[P, G]``, whether the second is.
    """
    shares = turn_shares(np.asarray(first) > 0.5, np.asarray(second) > 0.5)
    found = {name: mean_statistic(share, signed=name == "delta") for name, share in shares.items()}
    found["corrected"] = ratio_statistic(shares["0->1"], 1 - shares["acc@t1"])
    found["spoiled"] = ratio_statistic(shares["1->0"], shares["acc@t1"])
    return {f"turns.{name}": statistic for name, statistic in found.items()}


def row_mean(values: ArrayLike) -> Floats:
    """Mean ``[P]`` of each row's numbers; NaN for a row of NaN only."""
    values = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(-1), known.sum(-1))


def spread(score: ArrayLike) -> Floats:
    """Standard deviation (dividing by n) of each problem's scores ``[P]``; NaN with fewer than two scores."""
    score = np.asarray(score, dtype=np.float64)
    deviation = score - row_mean(score)[:, None]
    return np.where((~np.isnan(score)).sum(-1) > 1, np.sqrt(row_mean(deviation**2)), np.nan)
