"""Figures of stored runs, pooled over training seeds, and tests of whether one method is better than another.

**Pooling.** A figure of a method is the mean over its training seeds k of S_k, and its interval that of the
mean of S_k(w) over k, where w draws problems with their samples and seeds are drawn again, too. With one seed
an interval says how sure the figure is for *that trained model*.

**Tests** are paired over problems and aware of training seeds. The difference of two methods that were
measured on the same P problems has three sources of error, which are independent:

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
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from selfverify.evaluation.statistics import (
    Statistic,
    draws,
    on_all,
    percentile_interval,
    pooled_draws,
    ratio_draws,
)
from selfverify.selection.rules import Floats

LEVEL = 0.95
"""Of intervals."""

_NOTHING = 1e-18
"""A variance of shares that is rounding alone."""


def compare(
    own: Sequence[float],
    own_draws: Sequence[Floats],
    other: Sequence[float],
    other_draws: Sequence[Floats],
    problems: int,
) -> dict[str, Any]:
    """Compare two methods' figures on the same problems.

    Returns:
        ``difference``, the first minus the second; its 95 % ``interval``; and ``p`` of no difference,
        two-sided, for this comparison alone. The last two are None where nothing varies by which it could
        be judged.

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
        return {"difference": found, "interval": None, "p": None}
    degrees = total**2 / sum(variance**2 / d for variance, d in parts)
    error = math.sqrt(total)
    reach = float(stdtrit(degrees, (1 + LEVEL) / 2)) * error
    p = min(1.0, 2 * float(stdtr(degrees, -abs(found) / error)))
    return {"difference": found, "interval": [found - reach, found + reach], "p": p}


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


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The figures of one trained model, by name or by whatever else tells them apart.

    Args:
        values: The figures; NaN where one cannot be measured.
        draws: The figures on every draw of the problems ``[n]``; all runs have the same draws.
        problems: P of each figure.
    """

    values: dict[Any, float]
    draws: dict[Any, Floats]
    problems: dict[Any, int]

    @classmethod
    def of(cls, found: Mapping[Any, Statistic], problems: int) -> MeasuredRun:
        """Measure statistics by name on all ``problems``, and on every draw of them."""
        return cls(
            {name: on_all(statistic, problems) for name, statistic in found.items()},
            {name: draws(statistic, problems) for name, statistic in found.items()},
            dict.fromkeys(found, problems),
        )

    @classmethod
    def of_ratios(
        cls, parts: Mapping[Any, tuple[Floats, Floats]], problems: Mapping[Any, int], seed: int
    ) -> MeasuredRun:
        """Measure ratios of two sums over problems ``[P]``; the ``seed`` decides the draws."""
        above, below = (np.stack([part[side] for part in parts.values()], -1) for side in (0, 1))
        values, drawn = ratio_draws(above, below, seed)
        known = {name: k for k, name in enumerate(parts) if not np.isnan(values[k])}
        return cls(
            {name: float(values[k]) for name, k in known.items()},
            {name: drawn[:, k] for name, k in known.items()},
            {name: problems[name] for name in known},
        )

    def __or__(self, other: MeasuredRun) -> MeasuredRun:
        """The figures of both."""
        return MeasuredRun(
            self.values | other.values, self.draws | other.draws, self.problems | other.problems
        )


BySeed = Mapping[int, MeasuredRun]
"""The runs of one method by training seed."""


def pooled(by_seed: BySeed) -> dict[Any, dict[str, Any]]:
    """Return each figure's mean over seeds, its interval and the seeds' own values; None where undefined.

    ``seed_std`` is the standard deviation over seeds (dividing by n − 1).
    """
    result: dict[Any, dict[str, Any]] = {}
    for name in _names(by_seed):
        values = {seed: run.values.get(name, math.nan) for seed, run in by_seed.items()}
        known = {seed: value for seed, value in values.items() if not math.isnan(value)}
        drawn = [by_seed[seed].draws[name] for seed in known]
        result[name] = {
            "mean": float(np.mean([*known.values()])) if known else None,
            "interval": percentile_interval(pooled_draws(drawn)) if drawn else None,
            "seed_std": float(np.std([*known.values()], ddof=1)) if len(known) > 1 else None,
            "per_seed": {str(seed): known.get(seed) for seed in by_seed},
        }
    return result


def difference(
    by_seed: BySeed, baseline: BySeed, seeds: Literal["shared", "apart", "paired"] = "shared"
) -> dict[Any, dict[str, Any]]:
    """Return how much higher each figure is than the baseline's, on the same problems.

    ``p`` is that of no difference, without correction for other comparisons; it and the interval are None
    where nothing varies.

    Args:
        by_seed: The runs.
        baseline: Those that they are compared with.
        seeds: ``shared`` takes the seeds that both have, ``apart`` all of both, ``paired`` says that the same
            trained models are on both sides.
    """
    found: dict[Any, dict[str, Any]] = {}
    for name in _names(by_seed):
        sides = [
            {seed: run for seed, run in of.items() if not math.isnan(run.values.get(name, math.nan))}
            for of in (by_seed, baseline)
        ]
        if seeds != "apart":
            sides = [{seed: of[seed] for seed in sides[0] if seed in sides[1]} for of in sides]
        if not all(sides):
            continue
        own, other = ([run.values[name] for run in of.values()] for of in sides)
        drawn, others = ([run.draws[name] for run in of.values()] for of in sides)
        gaps = {} if seeds == "apart" else dict(zip(sides[0], np.subtract(own, other).tolist(), strict=True))
        if seeds == "paired":
            drawn = [a - b for a, b in zip(drawn, others, strict=True)]
            own, other, others = [*gaps.values()], [0.0], [np.zeros_like(drawn[0])]
        compared = compare(own, drawn, other, others, next(iter(sides[0].values())).problems[name])
        found[name] = compared | {"per_seed": {str(seed): gap for seed, gap in gaps.items()}}
    return found


def _names(by_seed: BySeed) -> list[Hashable]:
    return list(dict.fromkeys(name for run in by_seed.values() for name in run.values))
