"""Reliability figures and bootstrap intervals against hand-worked cases and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from selfverify.evaluation.metrics import augrc, aurc, brier, ece, reliability, risk_coverage

NAN = float("nan")


def test_brier_and_ece_by_hand():
    """Bins {.2, .4} with one right, |.6 - 1| = .4, and {.8, .9} with two, |1.7 - 2| = .3: .7 / 4."""
    confidence, correct = [0.9, 0.2, 0.8, 0.4, NAN], [1, 0, 1, 1, 0]
    assert ece(confidence, correct, bins=2) == pytest.approx(0.7 / 4)
    assert brier(confidence, correct) == pytest.approx((0.01 + 0.04 + 0.04 + 0.36) / 4)


def test_equal_confidences_share_a_bin():
    """Always .5 and half right is perfectly calibrated, in whatever order it comes."""
    assert ece([0.5] * 10, [0] * 5 + [1] * 5) == pytest.approx(0)
    # Six sure of being wrong are right, and 6 of 94 sure of being right are wrong: two bins, not one.
    assert ece([0.0] * 6 + [1.0] * 94, [1] * 6 + [0] * 6 + [1] * 88) == pytest.approx(0.12)
    assert ece([0.0] * 94 + [1.0] * 6, [0] * 88 + [1] * 6 + [0] * 6) == pytest.approx(0.12)


def test_risk_coverage_by_hand():
    """Right, wrong, wrong: risks 0, 1/2, 2/3, mean 7/18; joint 0, 0, 1/3, 2/3: (0 + 1/6 + 1/2)/3."""
    confidence, correct = [0.5, 0.9, 0.2], [0, 1, 0]
    coverage, risk = risk_coverage(confidence, correct)
    np.testing.assert_allclose(coverage, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(risk, [0, 1 / 2, 2 / 3])
    assert aurc(confidence, correct) == pytest.approx(7 / 18)
    assert augrc(confidence, correct) == pytest.approx(2 / 9)


def test_ties_are_the_mean_over_orders():
    rng = np.random.default_rng(0)
    confidence, correct = np.round(rng.random(12), 1), rng.integers(0, 2, 12)
    areas = []
    for _ in range(4000):
        order = rng.permutation(12)
        jitter = confidence[order] + rng.random(12) * 1e-6
        areas.append(aurc(jitter, correct[order]))
    assert aurc(confidence, correct) == pytest.approx(np.mean(areas), abs=0.005)


def test_nothing_known_is_none():
    assert reliability([NAN], [1]) == {"ece": None, "brier": None, "aurc": None, "augrc": None}
