"""Scores and shares of votes as probabilities of being right, and scores fused with log-probabilities.

A calibration is fitted on held-out samples and stored as a small JSON file beside the model. The file says
what it was fitted for: another verifier, strategy or number of samples needs another calibration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular, write_text
from selfverify.selection.rules import Floats

FUSED = "fused"
"""The name of the verifier; ``fused:A`` says the weight, which else comes from a calibration."""
MOST_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Fusion:
    """``s + weight * l``, or in its calibrated form sigmoid(``slope`` * (s + weight * l) + ``intercept``).

    A score that the policy writes and the probability that it gives to its own words know different things:
    the first has learnt to check, the second is low where the policy was guessing. Their sum can choose
    better than either does, and needs no other model. It is no rule of the papers, and is reported beside
    theirs.

    s is an answer's soft score in [0, 1], and l the mean log-probability of its tokens in nats, at most 0.
    Both forms put answers in the same order. The calibrated one is in [0, 1], as other scores are, and says
    how likely a single answer is to be right.

    Args:
        weight: The weight of a nat; with 0 the score alone decides.
        slope: Above 0; None leaves the sum as it is.
        intercept: Belongs to ``slope``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    weight: Annotated[FiniteFloat, Field(ge=0, le=MOST_WEIGHT)]
    slope: Annotated[FiniteFloat, Field(gt=0)] | None = None
    intercept: FiniteFloat = 0.0

    @property
    def is_probability(self) -> bool:
        """Whether its scores are probabilities."""
        return self.slope is not None

    def __call__(self, score: ArrayLike, logprob: ArrayLike) -> Floats:
        """Return the fused scores of any one shape; NaN where the score or the log-probability is."""
        summed: Floats = np.asarray(score, np.float64) + self.weight * np.asarray(logprob, np.float64)
        if self.slope is None:
            return summed
        power = np.clip(self.slope * summed + self.intercept, -500, 500)
        return np.where(np.isnan(summed), np.nan, 1.0 / (1.0 + np.exp(-power)))

    def of(self, score: float | None, logprob: float | None) -> float | None:
        """Return one answer's fused score; None where its score or its log-probability is unknown."""
        return None if score is None or logprob is None else float(self(score, logprob))


def fusion_of(verifier: str, fitted: Fusion | None) -> Fusion | None:
    """Return how the verifier ``fused`` or ``fused:A`` makes its scores; None for all other verifiers.

    Args:
        verifier: The verifier's description.
        fitted: The fusion that a calibration was fitted with.

    Raises:
        ConfigError: No weight is known, or ``A`` is none.
    """
    kind, colon, weight = verifier.partition(":")
    if kind != FUSED:
        return None
    if colon:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", weight) or float(weight) > MOST_WEIGHT:
            raise ConfigError(f"verifier {verifier!r}: a weight from 0 to 1000 is needed, such as fused:2")
        return Fusion(float(weight))
    if fitted is None:
        raise ConfigError(
            "verifier fused needs to know what a log-probability weighs: fit a calibration of it with "
            "`selfverify eval` and give it, or say the weight, as in fused:2"
        )
    return fitted


CALIBRATION_FILE = "calibration.json"
_EDGE = 1e-3
"""Before a logit is taken, scores are moved at least this far away from 0 and 1: a score has few digits."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map from confidences to probabilities that never decreases.

    Args:
        kind: ``isotonic`` is linear between the points (``x``, ``y``) and constant outside of them.
            ``temperature`` is sigmoid(logit / ``temperature``).
        x: The confidences of an isotonic map, ascending.
        y: The probabilities of an isotonic map, one for each of ``x``.
        temperature: A number above 1 makes scores less sure.
        threshold: Answers below this probability should be withheld; None withholds nothing.
        target_risk: The share of wrong answers among the given ones that ``threshold`` was chosen for.
        fitted_on: The verifier, strategy, samples, problems, ... that it was fitted on and is meant for.
        fusion: The fusion of the verifier ``fused``, if it was fitted for that one.
        format: The version of the file's format.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["isotonic", "temperature"]
    x: tuple[FiniteFloat, ...] = ()
    y: tuple[FiniteFloat, ...] = ()
    temperature: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    threshold: FiniteFloat | None = None
    target_risk: FiniteFloat | None = None
    fitted_on: dict[str, Any] | None = None
    fusion: Fusion | None = None
    format: Literal[1] = 1

    def __call__(self, confidence: ArrayLike) -> Floats:
        """Return the probabilities of confidences of any shape; NaN stays NaN."""
        values = np.asarray(confidence, dtype=np.float64)
        if self.kind == "isotonic":
            found: Floats = np.where(np.isnan(values), np.nan, np.interp(values, self.x, self.y))
            return found
        return 1.0 / (1.0 + np.exp(-_logit(values) / self.temperature))

    def misfit(self, use: Mapping[str, Any]) -> str | None:
        """Return the first setting in ``use`` that it was not fitted for, in words; None if it fits."""
        for name, asked in use.items():
            fitted = (self.fitted_on or {}).get(name)
            if fitted != asked:
                return f"{name} {fitted!r}, and this is {asked!r}"
        return None

    def save(self, path: Path) -> None:
        """Write the JSON file whole or not at all."""
        write_text(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            DataError: There is no such file, or it is not a calibration; the message says what is wrong.
        """
        try:
            found = TypeAdapter(cls).validate_json(read_regular(path))
        except OSError as error:
            raise DataError(f"the calibration {path} cannot be read: {error}") from None
        except ValidationError as error:
            [first, *_] = error.errors()
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}"
        else:
            rising = all(np.diff(found.x) > 0) and all(np.diff(found.y) >= 0)
            if found.kind == "temperature" or (found.x and len(found.x) == len(found.y) and rising):
                return found
            fault = "x has to rise, y may not fall, and both need the same number of values"
        raise DataError(f"{path} is not a calibration: {fault}. Fit it anew.")


def fit_calibration(
    confidence: ArrayLike, correct: ArrayLike, kind: Literal["isotonic", "temperature"] = "isotonic"
) -> Calibration:
    """Fit on held-out confidences and verdicts of any one shape; NaN confidences take no part.

    Isotonic regression follows any rising curve, but needs some hundred examples. A temperature is one number
    and needs confidences in [0, 1].

    Raises:
        DataError: Fewer than two examples, one class only, or (temperature) confidences that are no
            probabilities or fall as correctness rises.
    """
    values, labels = np.ravel(np.asarray(confidence, float)), np.ravel(np.asarray(correct, float)) > 0.5
    known = ~np.isnan(values)
    values, labels = values[known], labels[known]
    if len(np.unique(labels)) < 2:
        raise DataError(
            f"{len(values)} answers with a confidence, {int(labels.sum())} of them right: a calibration "
            "needs right and wrong ones; use more problems"
        )
    if kind == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        fit = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(values, labels)
        x, y = fit.X_thresholds_, fit.y_thresholds_
        return Calibration("isotonic", tuple(map(float, x)), tuple(map(float, y)))
    if kind != "temperature":
        raise ConfigError(f"calibration {kind!r}: isotonic or temperature")
    if values.min() < 0 or values.max() > 1:
        raise DataError("a temperature needs confidences between 0 and 1; use isotonic")
    from sklearn.linear_model import LogisticRegression

    logits = _logit(values)
    fit = LogisticRegression(C=np.inf, fit_intercept=False).fit(logits[:, None], labels)
    slope = float(fit.coef_[0, 0])
    if not slope > 1e-6:
        raise DataError(
            "no temperature fits: surer answers are not right more often around one half; use isotonic"
        )
    return Calibration("temperature", temperature=1.0 / slope)


def risk_threshold(probability: ArrayLike, correct: ArrayLike, target_risk: float) -> float | None:
    """The lowest probability from which on at most ``target_risk`` of the given answers are wrong.

    The threshold is chosen on the ``n`` examples that are passed in: hold some out to see what risk really
    remains. Answers without a probability (NaN) are never given.

    Args:
        probability: ``[n]``, how likely each answer is right.
        correct: ``[n]``, whether it is right.
        target_risk: A share in [0, 1].

    Returns:
        The threshold, 0 where nothing has to be withheld, None where no threshold keeps the risk.

    Raises:
        ConfigError: ``target_risk`` is not in [0, 1].
    """
    if not 0 <= target_risk <= 1:
        raise ConfigError(f"target risk {target_risk}: a share between 0 and 1 is needed")
    values, labels = np.ravel(np.asarray(probability, float)), np.ravel(np.asarray(correct, float)) > 0.5
    known = ~np.isnan(values)
    order = np.argsort(-values[known], kind="stable")
    ranked, wrong = values[known][order], ~labels[known][order]
    risk = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
    # Equal probabilities are given together: a threshold lies behind the last of them.
    ends = np.append(np.diff(ranked) != 0, True) if len(ranked) else np.zeros(0, bool)
    fine = np.flatnonzero(ends & (risk <= target_risk + 1e-12))
    if not len(fine):
        return None
    return 0.0 if fine[-1] == len(values) - 1 else float(ranked[fine[-1]])


def _logit(values: Floats) -> Floats:
    values = np.clip(values, _EDGE, 1 - _EDGE)
    found: Floats = np.log(values) - np.log1p(-values)
    return found
