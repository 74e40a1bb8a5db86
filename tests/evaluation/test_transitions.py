"""The figures of two-turn answers, by hand."""

from __future__ import annotations

import pytest

from selfverify.evaluation.statistics import transitions


def test_by_hand() -> None:
    first = [True, True, True, False, False, False, False, False]
    second = [True, True, False, True, True, True, False, False]
    found = transitions(first, second)
    assert found == pytest.approx({
        "acc@t1": 3 / 8, "acc@t2": 5 / 8, "delta": 2 / 8, "0->0": 2 / 8, "0->1": 3 / 8, "1->0": 1 / 8,
        "1->1": 2 / 8, "corrected": 3 / 5, "spoiled": 1 / 3,
    })  # fmt: skip


def test_rates_of_nothing_are_left_out() -> None:
    assert transitions([], []) == {}
    assert "spoiled" not in transitions([False], [True]) and "corrected" not in transitions([True], [True])
