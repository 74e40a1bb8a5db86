"""Tests between methods: by hand, against scipy's, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reproduce.statistics import compare, holm
from selfverify.evaluation.statistics import ratio_draws
from selfverify.selection.rules import Floats


def drawn(values: Floats) -> tuple[list[float], list[Floats]]:
    """Seeds' means ``[K]`` and their bootstrap draws, from values by seed and problem ``[K, P]``."""
    means, draws = ratio_draws(values.T, np.ones_like(values.T))
    return [float(m) for m in means], list(draws.T)


def test_one_seed_each_is_the_paired_t_test() -> None:
    """The bootstrap's variance of a mean is that of the t test, up to (P - 1) / P and the draws' chance."""
    rng = np.random.default_rng(0)
    hard = rng.random(200)  # shared by both, so that pairing matters
    a, b = hard + 0.05 * rng.standard_normal(200) + 0.02, hard + 0.05 * rng.standard_normal(200)
    found = compare(*drawn(a[None]), *drawn(b[None]), 200)
    known = stats.ttest_rel(a, b)
    assert found["difference"] == pytest.approx(np.mean(a - b))
    assert found["p"] == pytest.approx(known.pvalue, rel=0.2)
    assert found["interval"] == pytest.approx(list(known.confidence_interval()), abs=1e-3)
    unpaired = stats.ttest_ind(a, b).pvalue
    assert found["p"] is not None and found["p"] < 0.05 < unpaired


def test_seeds_that_vary_alone_are_welchs_test() -> None:
    """Where every problem has its seed's value, only seeds count, and few of them make a wide interval."""
    a, b = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.35])
    values = [np.repeat(seeds[:, None], 50, 1) for seeds in (a, b)]
    found = compare(*drawn(values[0]), *drawn(values[1]), 50)
    known = stats.ttest_ind(a, b, equal_var=False)
    assert found["p"] == pytest.approx(known.pvalue)
    assert found["interval"] == pytest.approx(list(known.confidence_interval()))


def test_nothing_varies() -> None:
    """All problems differ alike, or there is one: no test, whatever the difference."""
    same = np.full((1, 5), 0.3)
    found = compare(*drawn(same + 0.5), *drawn(same), 5)
    assert found["difference"] == pytest.approx(0.5)
    assert found["interval"] is None and found["p"] is None
    assert compare(*drawn(same[:, :1]), *drawn(same[:, :1] + 1), 1)["p"] is None


def test_holm_by_hand() -> None:
    """.01 x 3, .03 x 2, and the last no less than the one before; None does not count."""
    assert holm([0.03, None, 0.01, 0.04]) == pytest.approx([0.06, None, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
