"""Tests of whether one method is better than another, paired over problems and aware of training seeds.

A figure of a method is the mean over its K training seeds, all measured on the same P problems. The
difference of two methods has three sources of error, which are independent:

- **problems**: the variance of the difference over bootstrap draws of the problems. Both methods see the same
  draws, so that problems which are hard for both do not count;
- **each method's seeds**: the sample variance of its K figures, divided by K.

Their sum is the squared standard error. The difference in standard errors is compared with Student's t, its
degrees of freedom by Welch and Satterthwaite: P - 1 for the problems, K - 1 for each method's seeds.
So few seeds make an interval wide, where a bootstrap over two or three of them would make it too narrow. What
answers vary by chance is in the first part and in the others too: intervals are a little too wide rather than
too narrow. One seed tells nothing of how training varies: the test is then about that trained model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from selfverify.selection.rules import Floats

LEVEL = 0.95
"""Of intervals."""

_NOTHING = 1e-18
"""A variance of shares that is rounding alone."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How much higher one figure is than another.

    Args:
        difference: The first minus the second.
        interval: 95 %; None where nothing varies by which it could be judged.
        p: Of no difference, two-sided, for this comparison alone; None as for the interval.
        degrees: Degrees of freedom of the t distribution.
    """

    difference: float
    interval: list[float] | None
    p: float | None
    degrees: float | None


def compare(
    own: Sequence[float],
    own_draws: Sequence[Floats],
    other: Sequence[float],
    other_draws: Sequence[Floats],
    problems: int,
) -> Compared:
    """Compare two methods' figures on the same problems.

    Args:
        own: The figure of each of K seeds.
        own_draws: For each of them its values ``[draws]`` on draws of the problems.
        other: The figure of each of the other method's L seeds.
        other_draws: Its values on the same draws.
        problems: P.
    """
    found = float(np.mean(own) - np.mean(other))
    drawn = np.mean(np.stack([*own_draws]), axis=0) - np.mean(np.stack([*other_draws]), axis=0)
    known = drawn[~np.isnan(drawn)]
    parts = [(float(np.var(known, ddof=1)) if len(known) > 1 else 0.0, problems - 1)]
    parts += [(float(np.var(v, ddof=1)) / len(v), len(v) - 1) for v in (own, other) if len(v) > 1]
    total = sum(variance for variance, _ in parts)
    if problems < 2 or total < _NOTHING:
        return Compared(found, None, None, None)
    degrees = total**2 / sum(variance**2 / d for variance, d in parts)
    error = math.sqrt(total)
    reach = float(stdtrit(degrees, (1 + LEVEL) / 2)) * error
    p = min(1.0, 2 * float(stdtr(degrees, -abs(found) / error)))
    return Compared(found, [found - reach, found + reach], p, degrees)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for all comparisons of a family by Holm's step-down method.

    Calling those below 0.05 significant is wrong about any true zero in at most 5 % of families, however the
    comparisons depend on each other.

    Args:
        values: The p-values; None where there is none, which does not count.
    """
    order = sorted((p, place) for place, p in enumerate(values) if p is not None)
    found: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p))
        found[place] = least
    return found
