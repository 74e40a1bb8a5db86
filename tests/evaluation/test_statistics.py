"""Bootstrap intervals over seeds and problems, where they can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from selfverify.evaluation.statistics import seeds_interval


def test_two_seeds_that_agree_on_every_problem() -> None:
    """A draw has each seed twice with probability 1/4, so that the ends are the seeds' own means."""
    assert seeds_interval([[0.0] * 50, [0.2] * 50]) == pytest.approx([0.0, 0.2])


def test_two_problems_and_one_seed() -> None:
    """Both draws fall on one problem in a quarter of the cases each."""
    assert seeds_interval([[0.0, 1.0]]) == [0.0, 1.0]


def test_problems_that_are_drawn_as_one_leave_a_mean_over_problems() -> None:
    """Of a cluster of three zeros and one of a single one, a draw of both has a mean of 1/4, not of 1/2."""
    assert seeds_interval([[0.0, 0.0, 0.0, 1.0]], [7, 7, 7, 3]) == [0.0, 1.0]
    values, clusters = np.repeat([0.0, 1.0], [300, 100]), np.repeat(np.arange(100), 4)
    low, high = seeds_interval([values], clusters)
    assert low < 0.25 < high and high - low == pytest.approx(2 * 1.96 * np.sqrt(0.25 * 0.75 / 100), rel=0.1)
