"""Two-turn figures of an evaluation: by hand, with intervals, absent where there is one turn."""

from __future__ import annotations

import pytest

from samples import sample
from selfverify.evaluation.metrics import paired_difference, summarise
from selfverify.evaluation.samples import CORRECT_1, StoredSample


def turned(problem: int, number: int, first: int | None, second: int) -> StoredSample:
    rewards = {"answer": float(second), "format": 1.0} | ({} if first is None else {CORRECT_1: float(first)})
    return sample(f"p{problem}", number, bool(second), None, key=str(second), rewards=rewards)


KINDS = [[(0, 0), (0, 1), (0, 1), (1, 1)], [(1, 0), (1, 1), (1, 1), (0, 0)]]


def samples(kinds: list[list[tuple[int, int]]]) -> list[StoredSample]:
    return [turned(p, n, i, j) for p, row in enumerate(kinds) for n, (i, j) in enumerate(row)]


def test_turns_by_hand() -> None:
    summary = summarise(samples(KINDS))
    assert summary["turns"] == pytest.approx(
        {"acc@t1": 4 / 8, "acc@t2": 5 / 8, "delta": 1 / 8, "0->0": 2 / 8, "0->1": 2 / 8, "1->0": 1 / 8,
         "1->1": 3 / 8, "corrected": 2 / 4, "spoiled": 1 / 4}
    )  # fmt: skip
    assert summary["pass@1"] == summary["turns"]["acc@t2"]
    low, high = summary["intervals"]["turns.delta"]
    assert low == -0.25 and high == 0.5  # one problem's delta or the other's


def test_what_cannot_be_measured_is_none() -> None:
    assert summarise(samples([[(1, 1), (1, 0)]]))["turns"]["corrected"] is None
    one_turn = [turned(0, n, None, n) for n in range(2)]
    assert "turns" not in summarise(one_turn)


def test_two_runs_compare_problem_by_problem() -> None:
    copied = [[(i, i) for i, _ in row] for row in KINDS]
    found = paired_difference(samples(copied), samples(KINDS))
    assert found["turns.delta"]["difference"] == pytest.approx(1 / 8)
