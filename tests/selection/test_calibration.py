"""Calibration: hand-worked fits, thresholds, the file, and what it refuses."""

import json

import numpy as np
import pytest

from selfverify.core.errors import ConfigError, DataError
from selfverify.selection.calibration import Calibration, fit_calibration, risk_threshold

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


def test_file_keeps_everything(tmp_path):
    fit = fit_calibration([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    fit = Calibration("isotonic", fit.x, fit.y, 1.0, 0.4, 0.1, {"verifier": "soft", "samples": 8})
    fit.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == fit


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"x": [0.3, 0.1]}, "x has to rise"),
        ({"temperature": 0}, "temperature: .*, not 0"),
        ({"kind": "magic"}, "'magic'"),
        ({"extra": 1}, "extra: "),
        ({"format": 2}, "format: .*, not 2"),
    ],
)
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
