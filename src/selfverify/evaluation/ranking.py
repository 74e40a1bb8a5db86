"""How well scores rank right answers above wrong ones: AUC inside problems, AUC and AP over all samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from selfverify.evaluation.bootstrap import Statistic, ratio
from selfverify.selection.rules import Floats


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
        # Without any wrong sample average precision is 1 whatever the scores: nothing was measured.
        return np.where(misses[:, -1] > 0, ratio(area, hits[:, -1]), np.nan)

    return statistic


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
