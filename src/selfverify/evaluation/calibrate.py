"""Fits a calibration to stored samples, and measures what it is worth on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.fuse import fusion_of_samples, with_fused
from selfverify.evaluation.metrics import by_problem
from selfverify.evaluation.reliability import reliability
from selfverify.evaluation.store import StoredSample
from selfverify.selection.calibration import FUSED, Calibration, Fusion, fit_calibration, risk_threshold
from selfverify.selection.rules import Candidate, Floats, is_box
from selfverify.selection.strategies import DEFAULTS, choose, find_strategy


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


def sample_candidate(sample: StoredSample, verifier: str) -> Candidate:
    """Return a stored sample as a candidate with one verifier's score."""
    return Candidate(
        sample.answer, sample.key, sample.scores.get(verifier), sample.logprob, sample.tokens, sample.text
    )


def chosen_confidence(samples: Sequence[StoredSample], verifier: str, strategy: str) -> tuple[Floats, Floats]:
    """Return the confidence of each problem's chosen answer, NaN where unknown, and whether it is right.

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
    chosen = [
        (choose([sample_candidate(s, verifier) for s in group], strategy), group)
        for group in by_problem(samples).values()
    ]
    confidence = [np.nan if choice.confidence is None else choice.confidence for choice, _ in chosen]
    return np.array(confidence), np.array([float(group[choice.index].correct) for choice, group in chosen])


def _fused(samples: Sequence[StoredSample], fusion: Fusion | None) -> Sequence[StoredSample]:
    return samples if fusion is None else with_fused(samples, fusion)


def calibrate(
    samples: Sequence[StoredSample],
    verifier: str = "soft",
    strategy: str = "weighted",
    kind: Literal["isotonic", "temperature"] = "isotonic",
    target_risk: float | None = None,
    held_out: Sequence[StoredSample] | None = None,
    describe: dict[str, Any] | None = None,
) -> Fitted:
    """Fit a calibration of what a strategy chooses.

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
    confidence, correct = chosen_confidence(_fused(samples, fusion), verifier, strategy)
    about = {
        "verifier": verifier,
        "strategy": strategy,
        "options": asdict(DEFAULTS),
        "problems": len(correct),
        "samples_per_problem": round(len(samples) / len(correct)),
        **(describe or {}),
    }

    def fit(confidence: Floats, correct: Floats) -> Calibration:
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
        judged, (values, labels) = whole, chosen_confidence(_fused(held_out, fusion), verifier, strategy)
    else:
        if fusion is not None:  # what is reported on must not have chosen the weight
            half = [sample for rows in [*by_problem(samples).values()][::2] for sample in rows]
            halves = _fused(samples, fusion_of_samples(half))
            confidence, correct = chosen_confidence(halves, verifier, strategy)
        judged = fit(confidence[::2], correct[::2])
        values, labels = confidence[1::2], correct[1::2]
    probability = judged(values)
    coverage = risk = None
    if judged.threshold is not None:
        given = probability >= judged.threshold
        coverage = float(given.mean())
        risk = float(1 - labels[given].mean()) if given.any() else None
    return Fitted(whole, reliability(values, labels), reliability(probability, labels), coverage, risk)
