"""Calibration: from a score or a vote to the probability of being right, fitted on held-out samples.

It is stored as a small JSON file beside the model, and says what it was fitted for: another verifier,
strategy or number of samples needs another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from selfverify.errors import ConfigError, DataError
from selfverify.selection.rules import Floats

FORMAT = 1
CALIBRATION_FILE = "calibration.json"
_EDGE = 1e-3
"""Scores are taken as at least this far from 0 and 1 before their logit is: a score has few digits."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map from confidences to probabilities that never decreases.

    Args:
        kind: ``isotonic``: linear between ``x`` and ``y``, constant outside. ``temperature``: sigmoid(logit /
            ``temperature``).
        x: Isotonic: confidences, ascending.
        y: Isotonic: their probabilities.
        temperature: Above 1 where the scores are too sure of themselves.
        threshold: Answers below this probability should be withheld; None if nothing is.
        target_risk: The share of wrong answers among those given that ``threshold`` was chosen for.
        fitted_on: What it is for and what it was fitted on: verifier, strategy, samples, problems, ...
    """

    kind: Literal["isotonic", "temperature"]
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    temperature: float = 1.0
    threshold: float | None = None
    target_risk: float | None = None
    fitted_on: dict[str, Any] | None = None

    def __call__(self, confidence: ArrayLike) -> Floats:
        """Probabilities of any shape; NaN stays NaN."""
        values = np.asarray(confidence, dtype=np.float64)
        if self.kind == "isotonic":
            found: Floats = np.where(np.isnan(values), np.nan, np.interp(values, self.x, self.y))
            return found
        return 1.0 / (1.0 + np.exp(-_logit(values) / self.temperature))

    def misfit(self, use: Mapping[str, Any]) -> str | None:
        """The first of the settings ``use`` that it was not fitted for, and what it was fitted for."""
        for name, asked in use.items():
            fitted = (self.fitted_on or {}).get(name)
            if fitted != asked:
                return f"{name} {fitted!r}, and this is {asked!r}"
        return None

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        record = {"format": FORMAT, **asdict(self)}
        path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            DataError: There is no such file, or it is not a calibration; the message says what is wrong.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"the calibration {path} cannot be read: {error}") from None
        fault = _fault(record)
        if fault:
            raise DataError(f"{path} is not a calibration: {fault}. Fit it anew with `selfverify calibrate`.")
        del record["format"]
        return cls(**record | {"x": tuple(record["x"]), "y": tuple(record["y"])})


def fit_calibration(
    confidence: ArrayLike, correct: ArrayLike, kind: Literal["isotonic", "temperature"] = "isotonic"
) -> Calibration:
    """Fit on held-out confidences and verdicts of any one shape; NaN confidences take no part.

    Isotonic regression follows any rising curve but needs some hundred examples; a temperature is one number,
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
    """The lowest probability from which on at most ``target_risk`` of the answers given are wrong.

    Chosen on the examples handed in ``[n]``: hold some out to see what risk really remains. Examples without
    a probability (NaN) are never given.

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


def _fault(record: Any) -> str:
    """What is wrong with a calibration's record; empty if nothing is."""
    names = {"format", *Calibration.__dataclass_fields__}
    if not isinstance(record, dict) or record.keys() != names:
        return f"its fields should be {sorted(names)}"
    x, y, temperature = record["x"], record["y"], record["temperature"]
    if record["format"] != FORMAT or record["kind"] not in ("isotonic", "temperature"):
        return f"format {record['format']!r}, kind {record['kind']!r}"
    if not isinstance(x, list) or not isinstance(y, list) or not all(map(_is_number, [*x, *y, temperature])):
        return "x, y or temperature are not numbers"
    rising = all(np.diff(x) > 0) and all(np.diff(y) >= 0)
    if record["kind"] == "isotonic" and (not x or len(x) != len(y) or not rising):
        return "x has to rise, y may not fall, and both need the same number of values"
    if temperature <= 0:
        return f"temperature {temperature}"
    if not all(record[n] is None or _is_number(record[n]) for n in ("threshold", "target_risk")):
        return "threshold or target_risk is not a number"
    if not isinstance(record["fitted_on"], (dict, type(None))):
        return "fitted_on is not an object"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
