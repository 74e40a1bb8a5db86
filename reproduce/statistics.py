"""Figures of stored runs, pooled over training seeds, and tests of whether one method is better than another.

A run's figures are `selfverify.evaluation.statistics.Measured` by name; all runs that are pooled or compared
are about the same problems. That module also says how sure means and differences are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from selfverify.evaluation.metrics import MIXED_BOTH
from selfverify.evaluation.statistics import (
    Measured,
    Statistic,
    compare,
    interval,
    measure,
    on_shared,
    ratio_statistic,
)


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


MeasuredRun = dict[Any, Measured]
"""The figures of one trained model, by name or by whatever else tells them apart."""

BySeed = Mapping[int, MeasuredRun]
"""The runs of one method by training seed."""


def measure_run(found: Mapping[Any, Statistic]) -> MeasuredRun:
    """Measure statistics by name."""
    return {name: measure(statistic) for name, statistic in found.items()}


def ratio_run(parts: Mapping[Any, tuple[ArrayLike, ArrayLike]]) -> MeasuredRun:
    """Measure ratios of two sums over problems ``[P]`` by name; those that are undefined are left out."""
    found = measure_run({name: ratio_statistic(*part) for name, part in parts.items()})
    return {name: one for name, one in found.items() if not math.isnan(one.value)}


def mean_of(figures: Sequence[Measured]) -> Measured:
    """The mean of figures of one model, each of problems of its own."""
    return Measured(
        float(np.mean([one.value for one in figures])),
        np.concatenate([one.changes for one in figures]) / len(figures),
        np.concatenate([one.used for one in figures]),
        all(one.share for one in figures),
    )


def pooled(by_seed: BySeed) -> dict[Any, dict[str, Any]]:
    """Return each figure's mean over seeds, its interval and the seeds' own values; None where undefined.

    ``seed_std`` is the standard deviation over seeds (dividing by n − 1).
    """
    result: dict[Any, dict[str, Any]] = {}
    for name in _names(by_seed):
        known = {seed: run[name] for seed, run in _known(by_seed, name).items()}
        values = {seed: one.value for seed, one in known.items()}
        result[name] = {
            "mean": float(np.mean([*values.values()])) if known else None,
            "interval": interval([*known.values()]) if known else None,
            "seed_std": float(np.std([*values.values()], ddof=1)) if len(known) > 1 else None,
            "per_seed": {str(seed): values.get(seed) for seed in by_seed},
        }
    return result


def difference(
    by_seed: BySeed, baseline: BySeed, seeds: Literal["shared", "apart", "paired"] = "shared"
) -> dict[Any, dict[str, Any]]:
    """Return how much higher each figure is than the baseline's, on the same problems.

    ``p`` is that of no difference, without correction for other comparisons; it and the interval are None
    where nothing varies. `MIXED_BOTH` is the difference of within-problem AUC on the problems that are mixed
    in both runs of a seed, where these are not the same.

    Args:
        by_seed: The runs.
        baseline: Those that they are compared with.
        seeds: ``shared`` takes the seeds that both have, ``apart`` all of both, ``paired`` says that the same
            trained models are on both sides.
    """
    found: dict[Any, dict[str, Any]] = {}
    for name in _names(by_seed):
        sides = [_known(of, name) for of in (by_seed, baseline)]
        if seeds != "apart":
            sides = [{seed: of[seed] for seed in sides[0] if seed in sides[1]} for of in sides]
        if not all(sides):
            continue
        own, other = ([run[name] for run in of.values()] for of in sides)
        gaps = {} if seeds == "apart" else {s: a - b for s, a, b in zip(sides[0], own, other, strict=True)}
        compared = compare([*gaps.values()]) if seeds == "paired" else compare(own, other)
        found[name] = compared | {"per_seed": {str(seed): gap.value for seed, gap in gaps.items()}}
        pairs = [] if name != "within_problem_auc" or seeds == "apart" else [*zip(own, other, strict=True)]
        same = [on_shared(a, b) - on_shared(b, a) for a, b in pairs]
        if any((a.used != b.used).any() for a, b in pairs) and not any(math.isnan(g.value) for g in same):
            found[MIXED_BOTH] = compare(same)
    return found


def _known(by_seed: BySeed, name: Any) -> dict[int, MeasuredRun]:
    """The runs in which a figure is defined."""
    return {s: run for s, run in by_seed.items() if name in run and not math.isnan(run[name].value)}


def _names(by_seed: BySeed) -> list[Hashable]:
    return list(dict.fromkeys(name for run in by_seed.values() for name in run))
