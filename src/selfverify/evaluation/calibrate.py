"""Fitting a calibration to stored samples, and saying what it is worth on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfverify.errors import ConfigError, DataError
from selfverify.evaluation.reliability import reliability
from selfverify.evaluation.store import Sample
from selfverify.selection.calibration import Calibration, fit_calibration, risk_threshold
from selfverify.selection.candidates import Candidate, is_box
from selfverify.selection.choose import choose
from selfverify.selection.strategies import DEFAULTS, Options, find_strategy

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration and what it did on problems that it was not fitted on.

    Args:
        calibration: Fitted on everything that was given to fit on.
        before: ECE, Brier, AURC and AUGRC of the raw confidences of the choices.
        after: The same of the calibrated ones.
        coverage: Share of the problems answered at the threshold; None without a target risk.
        risk: Share of wrong answers among those; None where nothing is answered.
    """

    calibration: Calibration
    before: dict[str, float | None]
    after: dict[str, float | None]
    coverage: float | None
    risk: float | None


def sample_candidate(sample: Sample, verifier: str) -> Candidate:
    """A stored sample as a candidate with one verifier's score."""
    return Candidate(
        sample.answer, sample.key, sample.scores.get(verifier), sample.logprob, sample.tokens, sample.text
    )


def chosen_confidence(
    samples: Sequence[Sample], verifier: str, strategy: str, options: Options = DEFAULTS
) -> tuple[Floats, Floats]:
    """For each problem the chosen answer's confidence (NaN where unknown) and whether it is right ``[P]``.

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
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.problem, []).append(sample)
    chosen = [
        (choose([sample_candidate(s, verifier) for s in group], strategy, options), group)
        for group in groups.values()
    ]
    confidence = [np.nan if choice.confidence is None else choice.confidence for choice, _ in chosen]
    return np.array(confidence), np.array([float(group[choice.index].correct) for choice, group in chosen])


def calibrate(
    samples: Sequence[Sample],
    verifier: str = "soft",
    strategy: str = "weighted",
    kind: Literal["isotonic", "temperature"] = "isotonic",
    target_risk: float | None = None,
    held_out: Sequence[Sample] | None = None,
    options: Options = DEFAULTS,
    describe: dict[str, Any] | None = None,
) -> Fitted:
    """Fit a calibration of what a strategy chooses.

    Args:
        samples: To fit on: as many per problem as will be sampled in use.
        verifier: Whose scores.
        strategy: What chooses.
        kind: See `fit_calibration`.
        target_risk: Choose a threshold below which to abstain, so that at most this share is wrong.
        held_out: Problems to report on. Without, every second problem is fitted on and the others are
            reported on; the calibration that is returned is then fitted on all of them.
        options: Of the strategy.
        describe: More to keep in the file.

    Raises:
        DataError: Too few samples, only right or only wrong ones, or no threshold keeps the risk.
    """
    confidence, correct = chosen_confidence(samples, verifier, strategy, options)
    about = {
        "verifier": verifier,
        "strategy": strategy,
        "options": asdict(options),
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

    whole = replace(fit(confidence, correct), fitted_on=about)
    if held_out is not None:
        judged, (values, labels) = whole, chosen_confidence(held_out, verifier, strategy, options)
    else:
        judged = fit(confidence[::2], correct[::2])
        values, labels = confidence[1::2], correct[1::2]
    probability = judged(values)
    coverage = risk = None
    if judged.threshold is not None:
        given = probability >= judged.threshold
        coverage = float(given.mean())
        risk = float(1 - labels[given].mean()) if given.any() else None
    return Fitted(whole, reliability(values, labels), reliability(probability, labels), coverage, risk)
