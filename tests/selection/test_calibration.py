"""Calibration and fusion: hand-worked fits, thresholds, the file, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from selfverify.core.errors import ConfigError, DataError
from selfverify.selection.calibration import Calibration, Fusion, fit_calibration, fusion_of, risk_threshold
from tables import yaml_cases

NAN = float("nan")


def test_isotonic_by_hand():
    """Verdicts 0 1 0 1 in order of confidence: the middle two violate the order and are pooled at 1/2."""
    fit = fit_calibration([0.1, 0.2, 0.3, 0.4, NAN], [0, 1, 0, 1, 1])
    np.testing.assert_allclose(fit([0.1, 0.2, 0.3, 0.4]), [0, 0.5, 0.5, 1])
    np.testing.assert_allclose(fit([0.0, 0.15, 9.0, NAN]), [0, 0.25, 1, NAN])


def test_temperature_recovers_overconfidence():
    """Scores whose logits are three times too large: temperature 3."""
    rng = np.random.default_rng(0)
    logit = rng.normal(0, 1, 20_000)
    right = rng.random(20_000) < 1 / (1 + np.exp(-logit))
    fit = fit_calibration(1 / (1 + np.exp(-3 * logit)), right, "temperature")
    assert fit.temperature == pytest.approx(3, rel=0.06)
    assert float(fit(0.5)) == pytest.approx(0.5)


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(DataError, match="right and wrong ones"):
        fit_calibration([0.1, 0.2], [1, 1])
    with pytest.raises(DataError, match="surer answers are not right more often"):
        fit_calibration([0.1, 0.9], [1, 0], "temperature")
    with pytest.raises(DataError, match="between 0 and 1"):
        fit_calibration([-2.0, 0.9], [0, 1], "temperature")


def test_threshold_by_hand():
    """Risks by rank: 0, 1/2, 1/3, 1/2. For a third: down to .7. For a quarter: the first alone."""
    probability, correct = [0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]
    assert risk_threshold(probability, correct, 1 / 3) == 0.7
    assert risk_threshold(probability, correct, 0.25) == 0.9
    assert risk_threshold(probability, correct, 0.5) == 0.0
    assert risk_threshold([0.9, 0.9], [1, 0], 0.25) is None  # tied: both or neither
    assert risk_threshold([NAN], [1], 0.25) is None
    assert risk_threshold([0.9, NAN], [1, 0], 0.0) == 0.9  # the one without a confidence is withheld
    with pytest.raises(ConfigError, match="between 0 and 1"):
        risk_threshold(probability, correct, 2)


@yaml_cases
def test_a_broken_file_is_named(tmp_path, change, complaint):
    path = tmp_path / "calibration.json"
    Calibration("isotonic", (0.1, 0.2), (0.0, 1.0)).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=complaint) as error:
        Calibration.load(path)
    assert str(path) in str(error.value)


def test_a_missing_or_torn_file_is_named(tmp_path):
    for content in (None, "{", "[]", '{"format": NaN'):
        path = tmp_path / "c.json"
        if content:
            path.write_text(content)
        with pytest.raises(DataError, match=r"c\.json"):
            Calibration.load(path)


# --- fusion -------------------------------------------------------------------------------------------------


def test_the_sum_by_hand() -> None:
    assert Fusion(2.0).of(0.8, -0.25) == pytest.approx(0.3)
    np.testing.assert_allclose(Fusion(0.5)([0.5, 0.9], [-1.0, -0.2]), [0.0, 0.8])
    assert Fusion(0.0).of(0.8, -9.0) == 0.8


def test_the_calibrated_form_by_hand_keeps_the_order() -> None:
    fusion = Fusion(2.0, slope=4.0, intercept=-1.0)
    assert fusion.of(0.8, -0.25) == pytest.approx(1 / (1 + math.exp(-0.2)))
    scores, nats = np.random.default_rng(0).random(50), -np.random.default_rng(1).random(50)
    assert np.argsort(fusion(scores, nats)).tolist() == np.argsort(Fusion(2.0)(scores, nats)).tolist()
    assert fusion.of(0.5, -1e9) == pytest.approx(0.0, abs=1e-200)


@pytest.mark.parametrize("fusion", [Fusion(2.0), Fusion(2.0, 4.0, -1.0)])
def test_what_is_unknown_stays_unknown(fusion: Fusion) -> None:
    assert fusion.of(None, -1.0) is None and fusion.of(0.5, None) is None
    assert np.isnan(fusion([np.nan, 0.5], [-1.0, np.nan])).all()


def test_descriptions() -> None:
    fitted = Fusion(1.5, 3.0, -1.0)
    assert fusion_of("soft", fitted) is None and fusion_of("judge:fused", None) is None
    assert fusion_of("fused", fitted) == fitted
    assert fusion_of("fused:2", fitted) == Fusion(2.0) and fusion_of("fused:0.25", None) == Fusion(0.25)
    with pytest.raises(ConfigError, match="say the weight, as in fused:2"):
        fusion_of("fused", None)
    for wrong in ("fused:", "fused:-1", "fused:nan", "fused:1e3", "fused:1001", "fused:٢", "fused:2:3"):
        with pytest.raises(ConfigError, match="weight from 0 to 1000"):
            fusion_of(wrong, fitted)


def test_the_file_keeps_everything(tmp_path: Path) -> None:
    fusion, use = Fusion(1.5, 3.0, -1.0), {"verifier": "fused", "samples": 8}
    found = Calibration("isotonic", (0.1, 0.25), (0.0, 1.0), 2.0, 0.4, 0.2, use, fusion)
    found.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == found
    text = (tmp_path / "c.json").read_text(encoding="utf-8")
    (tmp_path / "c.json").write_text(text.replace("1.5", "-1.5"), encoding="utf-8")
    with pytest.raises(DataError, match=r"fusion.weight"):
        Calibration.load(tmp_path / "c.json")
