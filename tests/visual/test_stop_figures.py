"""The conditions of Theorem A.6 and the stopping times, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from selfverify.core.errors import DataError
from selfverify.visual.stopping import step_means, stop_figures

NAN = float("nan")
DELTA = np.array([[1.0, -3.0], [2.0, 0.5], [0.0, NAN]])
PLAN = np.array([[0.5, -1.0], [1.0, 0.0], [0.0, NAN]])


def test_means_by_hand() -> None:
    """Plans .5, 1, 0 and actions .5, 1, 0 in the first step; -1, 0 and -2, .5 in the second."""
    found = step_means(DELTA, PLAN)
    assert found.conversations.tolist() == [3, 2]
    assert found.plan == pytest.approx([0.5, -0.5]) and found.action == pytest.approx([0.5, -0.75])
    assert found.plan_error == pytest.approx([0.5 / np.sqrt(3), np.sqrt(0.5 / 2)])
    assert found.action_error == pytest.approx([0.5 / np.sqrt(3), 1.25])
    # r after the steps: 1, 2, 0 and -2, 2.5.
    assert found.positive == pytest.approx([1.0, 1.25])
    assert np.isnan(step_means(DELTA[:1], PLAN[:1]).plan_error).all()


def test_stopping_times_by_hand() -> None:
    """absolute: .6 stops the second after step 2 and the third at once; signed also the first after 2."""
    absolute, signed = stop_figures(DELTA, "absolute", 0.6), stop_figures(DELTA, "signed", 0.6)
    assert absolute.stopped_at == pytest.approx([1 / 3, 1 / 3]) and absolute.cap == pytest.approx(1 / 3)
    assert signed.stopped_at == pytest.approx([1 / 3, 2 / 3]) and signed.cap == 0
    assert absolute.steps == signed.steps == pytest.approx(5 / 3)
    assert absolute.counts.sum() == 5 and absolute.edges[[0, -1]].tolist() == [-3.0, 2.0]
    never = stop_figures(DELTA, "absolute", 0.0)
    assert never.cap == pytest.approx(2 / 3) and never.own_end == pytest.approx(1 / 3)
    assert never.steps == pytest.approx(5 / 3) and not never.stopped_at.any()


def test_what_does_not_fit_is_refused() -> None:
    """Shapes, and steps that nobody has."""
    with pytest.raises(DataError, match="one shape"):
        step_means(DELTA, PLAN[:1])
    with pytest.raises(DataError, match="no conversation has step 2"):
        step_means(DELTA[2:], PLAN[2:])
    with pytest.raises(DataError, match="at least one step"):
        stop_figures([[NAN]], "signed", 0.0)
