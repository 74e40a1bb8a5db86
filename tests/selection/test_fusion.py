"""Fused scores by hand: a score and a log-probability together."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from selfverify.core.errors import ConfigError, DataError
from selfverify.selection.calibration import Calibration, Fusion, fusion_of


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
    with pytest.raises(ConfigError, match="calibrate --verifier fused"):
        fusion_of("fused", None)
    for wrong in ("fused:", "fused:-1", "fused:nan", "fused:1e3", "fused:1001", "fused:٢", "fused:2:3"):
        with pytest.raises(ConfigError, match="weight from 0 to 1000"):
            fusion_of(wrong, fitted)


def test_a_calibration_keeps_it(tmp_path: Path) -> None:
    found = Calibration("temperature", fusion=Fusion(1.5, 3.0, -1.0))
    found.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == found
    text = (tmp_path / "c.json").read_text(encoding="utf-8")
    (tmp_path / "c.json").write_text(text.replace("1.5", "-1.5"), encoding="utf-8")
    with pytest.raises(DataError, match=r"fusion.weight"):
        Calibration.load(tmp_path / "c.json")
