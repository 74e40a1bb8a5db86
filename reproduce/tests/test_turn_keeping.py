"""What second turns keep, by hand, and that redraws are told from checks."""

from __future__ import annotations

import numpy as np
import pytest

from reproduce.turn_keeping import TurnTable, breakeven_statistic, keeping, turn_rates
from selfverify.core.errors import DataError
from selfverify.evaluation.samples import StoredSample, StoredStep, StoredVerdict
from selfverify.evaluation.statistics import on_all


def turn(number: int, key: str | None, correct: bool) -> StoredStep:
    verdict = StoredVerdict(key, key, correct)
    return StoredStep("policy", number, f"turn_{number + 1}", "", [], "stop", {}, verdict)


def sample(problem: str, number: int, first: str | None, second: str | None, right: str) -> StoredSample:
    """A conversation whose two answers have these keys, ``right`` being the right one."""
    steps = [turn(0, first, first == right), turn(1, second, second == right)]
    return StoredSample(
        problem=problem, sample=number, text="", answer=second, key=second, correct=second == right,
        rewards={"answer": 0.0, "format": 1.0, "correct_1": float(first == right)},
        scores={}, tokens=1, logprob=None, finish="stop", seed=0, steps=steps,
    )  # fmt: skip


def table_of(*problems: list[tuple[str | None, str | None]]) -> TurnTable:
    """One problem for each list of answers; ``r`` is right."""
    rows = [
        sample(str(p), n, first, second, "r")
        for p, answers in enumerate(problems)
        for n, (first, second) in enumerate(answers)
    ]
    return TurnTable.from_samples(rows)


def figures(table: TurnTable) -> dict[str, float]:
    return {name: on_all(statistic, len(table.first)) for name, statistic in keeping(table).items()}


def test_kept_by_hand() -> None:
    """Right: r r, r x, so 1/2. Wrong: x x, x r and y y, so 2/3; unreadable twice is not kept: 2/4."""
    table = table_of([("r", "r"), ("r", "x"), ("x", "x")], [("x", "r"), ("y", "y"), (None, None)])
    found = figures(table)
    assert (found["kept|right"], found["kept|wrong"]) == (0.5, 0.5)
    assert found["keep_gap"] == 0


def test_redrawn_takes_the_other_samples_second_answers() -> None:
    """Answers r, r, x, then r, x, x: r finds r in (x, x) and (r, x), x finds x in (r, x)."""
    found = figures(table_of([("r", "r"), ("r", "x"), ("x", "x")]))
    assert (found["redrawn|right"], found["redrawn|wrong"]) == (0.25, 0.5)
    assert found["redrawn_gap"] == -0.25
    assert "redrawn_gap" not in figures(table_of([("r", "r")], [("x", "r")]))


def test_redraws_have_a_gap_and_nothing_above_it() -> None:
    """Second turns that are first turns drawn again: right answers are likelier, so they are kept more."""
    rng = np.random.default_rng(0)
    wrong = list("abcdef")
    answers = []
    for share in np.linspace(0, 1, 400):
        drawn = rng.random((8, 2)) < share
        answers.append([tuple("r" if x else str(rng.choice(wrong)) for x in row) for row in drawn])
    table = table_of(*answers)
    found = figures(table)
    assert found["keep_gap"] > 0.4
    assert found["keep_gap"] == pytest.approx(found["redrawn_gap"], abs=0.03)
    pooled = [on_all(rate, 400) for rate in turn_rates(table, within=False)]
    within = [on_all(rate, 400) for rate in turn_rates(table, within=True)]
    # Even shares: 2/3 and 1/3 over all problems, and 1/2 inside each.
    assert pooled == pytest.approx([2 / 3, 1 / 3], abs=0.03)
    assert within == pytest.approx([1 / 2, 1 / 2], abs=0.03)
    assert on_all(breakeven_statistic(table, within=False), 400) == pytest.approx(2.0, abs=0.3)
    assert on_all(breakeven_statistic(table, within=True), 400) == pytest.approx(0.0, abs=0.15)


def test_rates_by_hand() -> None:
    """Three of four right: n_11 2, n_1 3, n_01 1, n_0 1. One of four: n_11 1, n_1 1, n_01 0, n_0 3.

    Within: kept (2 * 1 + 1 * 3) / (3 + 3), corrected (1 * 3 + 0 * 1) / 6. Pooled: 3 / 4 and 1 / 4.
    """
    table = table_of(
        [("r", "r"), ("r", "r"), ("r", "x"), ("x", "r")], [("r", "r"), ("x", "x"), ("x", "y"), ("y", "x")]
    )
    assert [on_all(rate, 2) for rate in turn_rates(table, within=True)] == pytest.approx([5 / 6, 1 / 2])
    assert [on_all(rate, 2) for rate in turn_rates(table, within=False)] == pytest.approx([3 / 4, 1 / 4])
    assert on_all(breakeven_statistic(table, within=True), 2) == pytest.approx(2 * (5 / 3 - 1))
    assert on_all(breakeven_statistic(table, within=False), 2) == pytest.approx(4.0)


def test_a_first_turn_that_was_cut_off_is_not_kept() -> None:
    """It is stored without messages."""
    cut = sample("p", 0, None, None, "r")
    cut.steps = []
    found = figures(TurnTable.from_samples([cut, sample("p", 1, "r", "r", "r")]))
    assert (found["kept|right"], found["kept|wrong"]) == (1, 0)


def test_what_cannot_be_compared_is_refused() -> None:
    once = sample("p", 3, "r", "r", "r")
    del once.rewards["correct_1"]
    with pytest.raises(DataError, match=r"sample 3 of p has no second turn"):
        TurnTable.from_samples([once])
    uneven = [sample(problem, n, "r", "r", "r") for problem, n in (("p", 0), ("q", 0), ("q", 1))]
    with pytest.raises(DataError, match="different numbers"):
        TurnTable.from_samples(uneven)
    with pytest.raises(DataError, match="boxes"):
        TurnTable.from_samples([sample("p", 0, None, None, "r")])
