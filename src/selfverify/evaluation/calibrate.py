"""Fit a calibration or a fusion to stored samples, and measure what a calibration is worth on others.

A fusion says how much an answer's log-probability counts beside its score
(`selfverify.selection.calibration`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trajectory import Finish
from selfverify.evaluation.metrics import SampleTable, by_problem, reliability
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import within_problem_auc
from selfverify.selection.calibration import FUSED, Calibration, Fusion, fit_calibration, risk_threshold
from selfverify.selection.rules import Candidate, Floats, is_box
from selfverify.selection.strategies import DEFAULTS, choose, find_strategy

WEIGHTS = (0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""The weights that are tried."""


def fit_fusion(score: ArrayLike, logprob: ArrayLike, correct: ArrayLike) -> Fusion:
    """Fit a fusion on held-out answers, all ``[P, G]``: G answers to each of P problems.

    An answer whose ``correct`` is NaN takes no part, nor does one without a score or a log-probability.
    The weight is the one of `WEIGHTS` with the highest within-problem AUC, which is what choosing can use; of
    equal ones the smallest, so that a log-probability that adds nothing counts nothing. The calibrated form
    is then a logistic regression of all answers on the fused score.

    Raises:
        DataError: No problem has a right and a wrong answer with a score and a log-probability, or fused
            scores fall as correctness rises.
    """
    values, nats = np.asarray(score, np.float64), np.asarray(logprob, np.float64)
    labels = np.asarray(correct, np.float64)
    known = ~np.isnan(values + nats + labels)
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
    """Fit a fusion of soft scores on stored samples, of those that have a verdict. See `fit_fusion`."""
    table = SampleTable(samples)
    verdicts = np.reshape(
        [_verdict(s) for row in by_problem(samples).values() for s in row], table.correct.shape
    )
    return fit_fusion(table.scores["soft"], table.scores["logprob"], verdicts)


def _verdict(sample: StoredSample) -> float:
    """Return 1 for a right answer, 0 for a wrong one, NaN for one without a verdict.

    A fit that took the last for wrong would learn the judge's failures.
    """
    return np.nan if sample.finish == Finish.ERROR else float(sample.correct)


def with_fused(samples: Sequence[StoredSample], fusion: Fusion | None) -> Sequence[StoredSample]:
    """Return the samples with a score ``fused`` too, where there is a fusion; other scores stay."""
    if fusion is None:
        return samples
    return [
        replace(s, scores={**s.scores, FUSED: fusion.of(s.scores.get("soft"), s.logprob)}) for s in samples
    ]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration and what it did on problems that it was not fitted on.

    Args:
        calibration: The calibration, fitted on all samples that were given to fit on.
        before: ECE, Brier score, AURC and AUGRC of the raw confidences of the choices.
        after: The same figures of the calibrated confidences.
        coverage: The share of the problems that are answered at the threshold; None without a target risk.
        risk: The share of wrong answers among the given ones; None where nothing is answered.
    """

    calibration: Calibration
    before: dict[str, float | None]
    after: dict[str, float | None]
    coverage: float | None
    risk: float | None


def chosen_confidence(samples: Sequence[StoredSample], verifier: str, strategy: str) -> tuple[Floats, Floats]:
    """Return the confidence of each problem's chosen answer and whether it is right, NaN where unknown.

    Both are ``[P]``.

    Raises:
        ConfigError: No such strategy, or no sample has a score of that name while the strategy needs one.
        DataError: The strategy answers with boxes of its own, which stored verdicts say nothing about.
    """
    needs_score = find_strategy(strategy).needs == "score"
    if needs_score and all(sample.scores.get(verifier) is None for sample in samples):
        known = sorted({name for s in samples for name, v in s.scores.items() if v is not None})
        raise ConfigError(f"no sample has a score {verifier!r}; scores: {', '.join(known) or 'none'}")
    if find_strategy(strategy).votes and any(s.key is None and is_box(s.answer) for s in samples):
        raise DataError(f"strategy {strategy} answers with boxes of its own; calibrate best instead")
    confidence, correct = [], []
    for group in by_problem(samples).values():
        choice = choose(
            [Candidate(s.answer, s.key, s.scores.get(verifier), s.logprob) for s in group], strategy
        )
        confidence.append(np.nan if choice.confidence is None else choice.confidence)
        correct.append(_verdict(group[choice.index]))
    return np.array(confidence), np.array(correct)


def calibrate(
    samples: Sequence[StoredSample],
    verifier: str = "soft",
    strategy: str = "weighted",
    kind: Literal["isotonic", "temperature"] = "isotonic",
    target_risk: float | None = None,
    held_out: Sequence[StoredSample] | None = None,
    describe: dict[str, Any] | None = None,
) -> Fitted:
    """Fit a calibration of what a strategy chooses, to those choices that have a verdict.

    Args:
        samples: The samples to fit on: as many per problem as will be sampled in use.
        verifier: The name of the scores. For ``fused`` the fusion is fitted too, and kept in the calibration.
        strategy: The name of the strategy that chooses.
        kind: How to map confidences (`fit_calibration`).
        target_risk: Choose a threshold below which to abstain, so that at most this share is wrong.
        held_out: Samples of other problems, to report on. Without them, every second problem is fitted on
            and the others are reported on; the returned calibration is then fitted on all of them.
        describe: Further facts to keep in the file.

    Raises:
        DataError: Too few samples, only right or only wrong ones, or no threshold keeps the risk.
    """
    fusion = fusion_of_samples(samples) if verifier == FUSED else None
    confidence, correct = chosen_confidence(with_fused(samples, fusion), verifier, strategy)
    about = {
        "verifier": verifier,
        "strategy": strategy,
        "options": asdict(DEFAULTS),
        "problems": int((~np.isnan(correct)).sum()),
        "samples_per_problem": round(len(samples) / len(correct)),
        **(describe or {}),
    }

    def fit(confidence: Floats, correct: Floats) -> Calibration:
        confidence, correct = _with_verdict(confidence, correct)
        found = fit_calibration(confidence, correct, kind)
        if target_risk is None:
            return found
        threshold = risk_threshold(found(confidence), correct, target_risk)
        if threshold is None:
            raise DataError(
                f"no threshold keeps the risk at {target_risk}: even the surest choices are wrong more "
                "often. Allow more risk, or use more samples or a better verifier"
            )
        return replace(found, threshold=threshold, target_risk=target_risk)

    whole = replace(fit(confidence, correct), fitted_on=about, fusion=fusion)
    if held_out is not None:
        judged, (values, labels) = whole, chosen_confidence(with_fused(held_out, fusion), verifier, strategy)
    else:
        if fusion is not None:  # what is reported on must not have chosen the weight
            half = [sample for rows in [*by_problem(samples).values()][::2] for sample in rows]
            halves = with_fused(samples, fusion_of_samples(half))
            confidence, correct = chosen_confidence(halves, verifier, strategy)
        judged = fit(confidence[::2], correct[::2])
        values, labels = confidence[1::2], correct[1::2]
    values, labels = _with_verdict(values, labels)
    probability = judged(values)
    coverage = risk = None
    if judged.threshold is not None:
        given = probability >= judged.threshold
        coverage = float(given.mean()) if len(given) else None
        risk = float(1 - labels[given].mean()) if given.any() else None
    return Fitted(whole, reliability(values, labels), reliability(probability, labels), coverage, risk)


def _with_verdict(confidence: Floats, correct: Floats) -> tuple[Floats, Floats]:
    known = ~np.isnan(correct)
    return confidence[known], correct[known]
