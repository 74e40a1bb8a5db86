"""Statistics of sample sets, and their bootstrap intervals.

The samples of one problem are not independent, so the bootstrap draws whole problems again. A draw of P
problems with replacement is a vector of counts, its *weights*. A statistic is a function from weights
``[B, P]`` to values ``[B]``, so that thousands of draws are a few array operations. Two runs on the same
problems are compared under the same draws, which removes the spread that hard and easy problems cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from selfverify.selection.rules import Floats

Statistic = Callable[[Floats], Floats]
"""A function from weights ``[B, P]`` to values ``[B]``; NaN where a draw leaves the statistic undefined."""

DRAWS = 2000
"""The number of bootstrap draws behind an interval."""

_BLOCK = 128
"""How many draws are evaluated at once. It bounds the memory of statistics that expand weights to samples."""


def on_all(statistic: Statistic, problems: int) -> float:
    """Return the statistic on all the problems as they are; NaN where it is undefined."""
    return float(statistic(np.ones((1, problems)))[0])


def draws(statistic: Statistic, problems: int) -> Floats:
    """Return the statistic on `DRAWS` draws of the problems; all statistics see the same draws."""
    weights = _draw(np.random.default_rng(0), problems)
    return np.concatenate([statistic(weights[start : start + _BLOCK]) for start in range(0, DRAWS, _BLOCK)])


def _draw(rng: np.random.Generator, count: int) -> Floats:
    """`DRAWS` draws of so many things with replacement: how often each was drawn, ``[DRAWS, count]``."""
    return rng.multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)


def percentile_interval(values: Floats) -> list[float] | None:
    """Return the ends of the central 95 % of the values without NaN; None if all are NaN."""
    known = values[~np.isnan(values)]
    return np.quantile(known, [1 - 0.975, 0.975]).tolist() if len(known) else None


def bootstrap_interval(statistic: Statistic, problems: int) -> list[float] | None:
    """Return the 95 % percentile bootstrap interval over problems; None where the statistic is undefined."""
    return percentile_interval(draws(statistic, problems))


def ratio_draws(above: ArrayLike, below: ArrayLike, seed: int = 0) -> tuple[Floats, Floats]:
    """K ratios of sums over problems, and their values on `DRAWS` draws of the problems.

    Args:
        above: ``[P, K]``.
        below: ``[P, K]``.
        seed: Decides the draws; `draws` has those of 0.

    Returns:
        ``[K]`` and ``[DRAWS, K]``; NaN where the lower sum is 0.
    """
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    weights = _draw(np.random.default_rng(seed), len(above))
    return ratio(above.sum(0), below.sum(0)), ratio(weights @ above, weights @ below)


def pooled_draws(by_seed: Sequence[Floats]) -> Floats:
    """The mean over training seeds on draws of problems and seeds, both drawn again.

    Args:
        by_seed: For each of K seeds the values ``[DRAWS]`` of a figure on the same draws of problems.

    Returns:
        ``[DRAWS]``; with one seed its own values.
    """
    seeds = _draw(np.random.default_rng(1), len(by_seed)) / len(by_seed)
    mean: Floats = (seeds.T * np.stack([*by_seed])).sum(0)
    return mean


def ratio(above: Floats, below: Floats) -> Floats:
    """``above / below``, NaN where ``below`` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def paired(
    first: Mapping[str, Statistic], second: Mapping[str, Statistic], problems: int
) -> dict[str, dict[str, Any]]:
    """Return how much higher statistics are in the second of two sets about the same problems, by name.

    Returns:
        ``{name: {"difference": float, "interval": [low, high]}}`` of those that are defined in both.
    """
    found = {}
    for name in (name for name in first if name in second):
        difference = on_all(second[name], problems) - on_all(first[name], problems)
        interval = percentile_interval(draws(second[name], problems) - draws(first[name], problems))
        if not math.isnan(difference) and interval is not None:
            found[name] = {"difference": difference, "interval": interval}
    return found


def mean_statistic(per_problem: ArrayLike) -> Statistic:
    """Return the mean over problems of a value per problem ``[P]``; problems with NaN take no part."""
    values = np.asarray(per_problem, dtype=np.float64)
    defined = ~np.isnan(values)
    return ratio_statistic(np.where(defined, values, 0.0), defined)


def ratio_statistic(above: ArrayLike, below: ArrayLike) -> Statistic:
    """Return the sum over problems of one value per problem ``[P]``, divided by the sum of another."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return lambda weights: ratio(weights @ above, weights @ below)


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

    return statistic


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

    return statistic


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
    found = {name: mean_statistic(share) for name, share in shares.items()}
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
