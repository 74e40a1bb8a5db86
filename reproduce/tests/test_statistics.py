"""A family of comparisons, by hand; how sure single ones are is in tests/evaluation/test_coverage.py."""

from __future__ import annotations

import pytest

from reproduce.statistics import holm


def test_holm_by_hand() -> None:
    """.01 x 3, .03 x 2, and the last no less than the one before; None does not count."""
    assert holm([0.03, None, 0.01, 0.04]) == pytest.approx([0.06, None, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
