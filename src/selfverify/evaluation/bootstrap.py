"""Bootstrap over problems.

Samples of one problem are not independent, so problems are what is drawn again. A draw of P problems with
replacement is a vector of counts, its *weights*, and a statistic is a function from weights ``[B, P]`` to
values ``[B]``: thousands of draws are then a few array operations. Two runs on the same problems are compared
under the same draws, which removes the spread that hard and easy problems cause.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Weights ``[B, P]`` to values ``[B]``; NaN where a draw leaves the statistic undefined."""

_BLOCK = 128
"""Draws evaluated at once; bounds the memory of statistics that expand weights to samples."""


def mean_statistic(per_problem: ArrayLike) -> Statistic:
    """The mean over problems of a value per problem ``[P]``; problems with NaN take no part."""
    values = np.asarray(per_problem, dtype=np.float64)
    defined = ~np.isnan(values)
    filled = np.where(defined, values, 0.0)

    def statistic(weights: Floats) -> Floats:
        return _ratio(weights @ filled, weights @ defined.astype(np.float64))

    return statistic


def ratio_statistic(above: ArrayLike, below: ArrayLike) -> Statistic:
    """The sum over problems of one value per problem ``[P]`` over the sum of another."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return lambda weights: _ratio(weights @ above, weights @ below)


def auc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """Area under the ROC curve pooled over all samples ``[P, G]``; samples without a score take no part.

    With A[p, q] the sum of 1{s_i > s_j} + ½·1{s_i = s_j} over right samples i of problem p and wrong samples
    j of problem q, the AUC under weights w is wᵀAw / (w·n₊)(w·n₋): exact, and one small matrix for all draws.
    """
    wins, right, wrong = concordance(score, correct)

    def statistic(weights: Floats) -> Floats:
        return _ratio(((weights @ wins) * weights).sum(-1), (weights @ right) * (weights @ wrong))

    return statistic


def average_precision_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """Average precision pooled over all samples ``[P, G]``, as scikit-learn defines it (no interpolation)."""
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    owner, column = np.nonzero(~np.isnan(score))
    order = np.argsort(-score[owner, column], kind="stable")
    owner, column = owner[order], column[order]
    right, ranked = correct[owner, column], score[owner, column]
    # Equal scores are one threshold: precision is read only at the last of them.
    ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True)) if len(ranked) else np.zeros(0, dtype=int)

    def statistic(weights: Floats) -> Floats:
        if not len(ends):
            return np.full(len(weights), np.nan)
        expanded = weights[:, owner]
        hits = np.cumsum(expanded * right, axis=-1)[:, ends]
        seen = np.cumsum(expanded, axis=-1)[:, ends]
        precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
        area = (precision * np.diff(hits, axis=-1, prepend=0.0)).sum(-1)
        # Without any wrong sample average precision is 1 whatever the scores: nothing was measured.
        return np.where(seen[:, -1] > hits[:, -1], _ratio(area, hits[:, -1]), np.nan)

    return statistic


def concordance(score: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Pair counts between problems: A ``[P, P]`` as in `auc_statistic`, and right and wrong samples ``[P]``.

    The diagonal of A counts the pairs inside each problem.
    """
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    positive = (correct > 0.5) & ~np.isnan(score)
    negative = (correct <= 0.5) & ~np.isnan(score)
    owner, column = np.nonzero(negative)
    against = score[owner, column]
    wins = np.zeros((len(score), len(score)))
    for row, (values, use) in enumerate(zip(score, positive, strict=True)):
        beaten = (values[use, None] > against).sum(0) + 0.5 * (values[use, None] == against).sum(0)
        wins[row] = np.bincount(owner, weights=beaten, minlength=len(score))
    return wins, positive.sum(-1).astype(np.float64), negative.sum(-1).astype(np.float64)


def evaluate(statistic: Statistic, problems: int) -> float:
    """The statistic on the problems as they are; NaN where it is undefined."""
    return float(statistic(np.ones((1, problems)))[0])


def draws(statistic: Statistic, problems: int, n: int = 2000, seed: int = 0) -> Floats:
    """The statistic ``[n]`` on n draws of the problems; a seed gives every statistic the same draws."""
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(problems, np.full(problems, 1 / problems), size=n).astype(np.float64)
    return np.concatenate([statistic(weights[start : start + _BLOCK]) for start in range(0, n, _BLOCK)])


def percentile_interval(values: Floats, level: float = 0.95) -> tuple[float, float] | None:
    """The central ``level`` of the values; undefined draws are left out, and None if no draw is defined."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_interval(
    statistic: Statistic | ArrayLike,
    problems: int | None = None,
    n: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval over problems.

    Args:
        statistic: A value per problem ``[P]``, whose mean is meant (NaN: takes no part), or a `Statistic`.
        problems: P; needed with a `Statistic` only.
        n: Draws.
        seed: Of the draws.
        level: Coverage.

    Returns:
        Low and high, or None where the statistic is undefined.

    Raises:
        ValueError: A `Statistic` without ``problems``.
    """
    if callable(statistic):
        if problems is None:
            raise ValueError("a statistic given as a function needs the number of problems")
        return percentile_interval(draws(statistic, problems, n, seed), level)
    values = np.asarray(statistic, dtype=np.float64)
    return percentile_interval(draws(mean_statistic(values), len(values), n, seed), level)


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
