"""Fits how much an answer's log-probability counts beside its score (`selfverify.selection.calibration`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from selfverify.core.errors import DataError
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.statistics import within_problem_auc
from selfverify.evaluation.store import StoredSample
from selfverify.selection.calibration import FUSED, Fusion

WEIGHTS = (0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""The weights that are tried."""


def fit_fusion(score: ArrayLike, logprob: ArrayLike, correct: ArrayLike) -> Fusion:
    """Fit a fusion on held-out answers, all ``[P, G]``: G answers to each of P problems.

    The weight is the one of `WEIGHTS` with the highest within-problem AUC, which is what choosing can use; of
    equal ones the smallest, so that a log-probability that adds nothing counts nothing. The calibrated form
    is then a logistic regression of all answers on the fused score.

    Raises:
        DataError: No problem has a right and a wrong answer with a score and a log-probability, or fused
            scores fall as correctness rises.
    """
    values, nats = np.asarray(score, np.float64), np.asarray(logprob, np.float64)
    labels = np.asarray(correct, np.float64)
    known = ~np.isnan(values) & ~np.isnan(nats)
    # Rounded, since equal sums of different parts differ in their last bits.
    sums = [np.where(known, np.round(values + weight * nats, 12), np.nan) for weight in WEIGHTS]
    aucs = [within_problem_auc(fused, labels) for fused in sums]
    if np.isnan(aucs[0]).all():
        raise DataError(
            f"{int(known.sum())} answers with a score and a log-probability, in no problem both right and "
            "wrong ones: a fusion needs such problems; use more problems or samples, and an engine that "
            "gives log-probabilities"
        )
    means = [round(float(np.nanmean(auc)), 12) for auc in aucs]
    weight = WEIGHTS[int(np.argmax(means))]
    from sklearn.linear_model import LogisticRegression

    fused = (values + weight * nats)[known]
    # A little regularisation, so that it ends where right and wrong answers lie apart.
    fit = LogisticRegression(C=1e4).fit(fused[:, None], labels[known] > 0.5)
    slope = float(fit.coef_[0, 0])
    if not slope > 1e-6:
        raise DataError("these scores cannot be fused: answers with higher ones are not right more often")
    return Fusion(weight, slope, float(fit.intercept_[0]))


def fusion_of_samples(samples: Sequence[StoredSample]) -> Fusion:
    """Fit a fusion of soft scores on stored samples. See `fit_fusion`."""
    table = SampleTable.from_samples(samples)
    return fit_fusion(table.scores["soft"], table.scores["logprob"], table.correct)


def with_fused(samples: Sequence[StoredSample], fusion: Fusion) -> list[StoredSample]:
    """Return the samples with a score ``fused`` too; the others stay as they are."""
    return [
        replace(s, scores={**s.scores, FUSED: fusion.of(s.scores.get("soft"), s.logprob)}) for s in samples
    ]
