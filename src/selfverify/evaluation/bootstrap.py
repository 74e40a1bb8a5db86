"""Bootstrap over problems.

The samples of one problem are not independent, so whole problems are drawn again. A draw of P problems with
replacement is a vector of counts, its *weights*. A statistic is a function from weights ``[B, P]`` to values
``[B]``: thousands of draws are then a few array operations. Two runs on the same problems are compared under
the same draws, which removes the spread that hard and easy problems cause.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from selfverify.selection.rules import Floats

Statistic = Callable[[Floats], Floats]
"""A function from weights ``[B, P]`` to values ``[B]``; NaN where a draw leaves the statistic undefined."""

_BLOCK = 128
"""How many draws are evaluated at once. It bounds the memory of statistics that expand weights to samples."""


def mean_statistic(per_problem: ArrayLike) -> Statistic:
    """Return the mean over problems of a value per problem ``[P]``; problems with NaN take no part."""
    values = np.asarray(per_problem, dtype=np.float64)
    defined = ~np.isnan(values)
    filled = np.where(defined, values, 0.0)

    def statistic(weights: Floats) -> Floats:
        return ratio(weights @ filled, weights @ defined.astype(np.float64))

    return statistic


def ratio_statistic(above: ArrayLike, below: ArrayLike) -> Statistic:
    """Return the sum over problems of one value per problem ``[P]``, divided by the sum of another."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return lambda weights: ratio(weights @ above, weights @ below)


def on_all(statistic: Statistic, problems: int) -> float:
    """Return the statistic on all the problems as they are; NaN where it is undefined."""
    return float(statistic(np.ones((1, problems)))[0])


def draws(statistic: Statistic, problems: int, n: int = 2000, seed: int = 0) -> Floats:
    """Return the statistic ``[n]`` on n draws of problems; a seed gives every statistic the same draws."""
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(problems, np.full(problems, 1 / problems), size=n).astype(np.float64)
    return np.concatenate([statistic(weights[start : start + _BLOCK]) for start in range(0, n, _BLOCK)])


def percentile_interval(values: Floats, level: float = 0.95) -> tuple[float, float] | None:
    """Return the ends of the central ``level`` of the values without NaN; None if all are NaN."""
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
        statistic: A `Statistic`, or a value per problem ``[P]``, whose mean is meant; NaN takes no part.
        problems: P; needed with a `Statistic` only.
        n: The number of draws.
        seed: The seed of the draws.
        level: The share of the draws inside the interval.

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


def ratio(above: Floats, below: Floats) -> Floats:
    """``above / below``, NaN where ``below`` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
