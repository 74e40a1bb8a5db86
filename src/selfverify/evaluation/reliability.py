"""Whether confidences mean what they say, and what abstaining by them would gain.

All functions take confidences and verdicts of any one shape; answers without a confidence (NaN) take no part.
Within-problem AUC is about choosing and not about abstaining; it is in `selfverify.evaluation.statistics`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from selfverify.selection.rules import Floats


def brier(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Mean squared difference of confidence and verdict: 0 is perfect, a constant one half gives 1/4."""
    values, labels = _known(confidence, correct)
    return float(((values - labels) ** 2).mean()) if len(values) else None


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float | None:
    """Expected calibration error over ``bins`` bins of equal mass.

    The mean over answers of |accuracy - mean confidence| of the bin they fall in. Bins are cut from the
    sorted confidences; equal confidences share the bin that the middle one of them falls into.
    """
    values, labels = _known(confidence, correct)
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    position = np.arange(len(values)) * min(bins, len(values)) // len(values)
    _, first, group, many = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    bin_of = position[first + (many - 1) // 2][group]
    count = np.bincount(bin_of, minlength=bins)
    gap = np.bincount(bin_of, values, bins) - np.bincount(bin_of, labels, bins)
    return float(np.abs(gap).sum() / count.sum())


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Return coverage k/n and selective risk ``[n]`` when only the k most confident answers are given.

    Equal confidences come in random order; the risk is the expected one.
    """
    values, labels = _known(confidence, correct)
    wrong = 1.0 - labels
    order = np.argsort(-values, kind="stable")
    ranked, wrong = values[order], wrong[order]
    _, group = np.unique(-ranked, return_inverse=True)
    expected = (
        (np.bincount(group, wrong) / np.maximum(np.bincount(group), 1))[group] if len(ranked) else wrong
    )
    count = np.arange(1, len(ranked) + 1)
    return count / max(len(ranked), 1), np.cumsum(expected) / count


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Area under the risk-coverage curve: mean selective risk over all coverages; lower is better."""
    _, risk = risk_coverage(confidence, correct)
    return float(risk.mean()) if len(risk) else None


def augrc(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Area under the generalised risk-coverage curve (arXiv:2407.01032): mean of coverage times risk.

    The generalised risk at a coverage is the share of *all* answers that are given and wrong, so that a few
    confident mistakes do not weigh on every coverage as they do in `aurc`. Lower is better, at most 1/2.
    """
    coverage, risk = risk_coverage(confidence, correct)
    if not len(risk):
        return None
    joint = np.concatenate([[0.0], coverage * risk])
    return float(((joint[1:] + joint[:-1]) / 2).mean())


def reliability(confidence: ArrayLike, correct: ArrayLike) -> dict[str, float | None]:
    """Return ``ece``, ``brier``, ``aurc`` and ``augrc`` by name."""
    return {f.__name__: f(confidence, correct) for f in (ece, brier, aurc, augrc)}


def _known(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    values = np.ravel(np.asarray(confidence, dtype=np.float64))
    labels = (np.ravel(np.asarray(correct, dtype=np.float64)) > 0.5).astype(np.float64)
    if values.shape != labels.shape:
        raise ValueError(f"{len(values)} confidences for {len(labels)} verdicts")
    known = ~np.isnan(values)
    return values[known], labels[known]
