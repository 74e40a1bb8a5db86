"""What rules that end looking come to: worked by hand on four conversations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.core.errors import ConfigError
from selfverify.evaluation.visual_metrics import (
    CappedArrays,
    StopOutcome,
    always,
    compared,
    never,
    oracle,
    outcomes,
    own_end,
    self_stop,
    shuffled,
    stopped,
    verifier_steps,
)

NAN = float("nan")


def four(**changes: object) -> CappedArrays:
    """Three conversations to the cap of three steps, and one that was cut off behind its first.

    The second wants to answer in its second step, rightly; the third in its first, wrongly.
    """
    given = {
        "problem": [0, 0, 1, 2],
        "lengths": [3, 3, 3, 1],
        "delta_r": [[2.0, 0.1, -3.0], [-1.0, NAN, 0.2], [NAN, 4.0, 0.3], [5.0, NAN, NAN]],
        "delta_r_plan": [[1.0, 0.0, -1.0], [0.0, NAN, 0.1], [NAN, 1.0, 0.1], [1.0, NAN, NAN]],
        "correct": [[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, NAN, NAN]],
        "own": [[NAN] * 3, [NAN, 1.0, NAN], [0.0, NAN, NAN], [NAN] * 3],
        "final": [1, 0, 0, 0],
        "visual": [[4, 8, 12, 16], [4, 8, 8, 12], [4, 4, 8, 12], [4, 8, 8, 8]],
        "enough": [2, 1, 0, 0],
        "seen": [[0, 0.5, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0.5], [0, 0.5, NAN, NAN]],
    } | changes
    whole = ("problem", "lengths", "enough")
    arrays = {
        name: None if value is None else np.array(value, dtype=np.int64 if name in whole else np.float64)
        for name, value in given.items()
    }
    return CappedArrays(**arrays, left_out=0)  # type: ignore[arg-type]


def rows(outcome: StopOutcome) -> tuple[list[float], list[float], list[float]]:
    """Answers, steps and visual tokens."""
    return outcome.right.tolist(), outcome.steps.tolist(), outcome.visual.tolist()


def test_a_fixed_number_of_steps() -> None:
    """The answer after it; a step in which the model answers is no look; who has fewer ends as it did."""
    assert rows(always(four(), 0)) == ([0, 1, 0, 0], [0, 0, 0, 0], [4, 4, 4, 4])
    assert rows(always(four(), 1)) == ([0, 0, 0, 0], [1, 1, 0, 1], [8, 8, 4, 8])
    assert rows(always(four(), 2)) == ([1, 1, 1, 0], [2, 1, 2, 1], [12, 8, 8, 8])
    assert rows(always(four(), 3)) == ([1, 0, 0, 0], [3, 3, 3, 1], [16, 12, 12, 8])
    assert rows(always(four(), 9)) == rows(always(four(), 3))


def test_the_model_stops_itself() -> None:
    """With its first own answer, or at the cap."""
    assert own_end(four()).tolist() == [4, 2, 1, 4] and never(four()) == 4
    assert rows(self_stop(four())) == ([1, 1, 0, 0], [3, 1, 0, 1], [16, 8, 4, 8])


def test_the_verifier_stops() -> None:
    """By the first Δr that fulfils the rule; a step that was not measured does not; ``skip`` drops a step."""
    looked = four()
    assert verifier_steps(looked, "absolute", 0.5).tolist() == [2, 3, 3, 4]
    assert verifier_steps(looked, "signed", 0.5).tolist() == [2, 1, 3, 4]
    signed = verifier_steps(looked, "signed", 0.5)
    assert rows(stopped(looked, signed)) == ([1, 0, 0, 0], [2, 1, 3, 1], [12, 8, 12, 8])
    assert rows(stopped(looked, signed, "skip")) == ([0, 1, 1, 0], [1, 0, 2, 1], [8, 4, 8, 8])
    found = outcomes(looked, {"absolute": 0.5})
    # The second and the third end by themselves before the verifier stops them.
    assert rows(found["absolute, accept"]) == ([1, 1, 0, 0], [2, 1, 0, 1], [12, 8, 4, 8])
    assert set(found) == {
        *(f"always {n}" for n in range(4)), "self-stop", "oracle",
        "absolute", "absolute, skip", "absolute, accept", "absolute, random",
    }  # fmt: skip


def test_the_oracle_and_what_is_early_or_late() -> None:
    """It stops where everything has been shown; where it never has, at the end, which is early for all."""
    looked = four()
    found = oracle(looked)
    assert rows(found) == ([1, 0, 0, 0], [2, 1, 3, 1], [12, 8, 12, 8])
    assert found.early is not None and found.late is not None
    assert found.early.tolist() == [0, 0, 1, 1] and found.late.tolist() == [0, 0, 0, 0]
    last = always(looked, 3)
    assert last.early is not None and last.late is not None
    assert last.early.tolist() == [0, 0, 1, 1] and last.late.tolist() == [1, 1, 0, 0]
    with pytest.raises(ConfigError, match="no oracle"):
        oracle(four(enough=None))
    assert always(four(enough=None), 3).early is None and "oracle" not in outcomes(four(enough=None), {})


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_random_stopping_is_the_mean_over_permutations(at: list[int]) -> None:
    """Against all 24 of them."""
    looked = four()
    every = [stopped(looked, np.array(order)) for order in itertools.permutations(at)]
    found = shuffled(looked, np.array(at))
    for name in ("right", "steps", "visual", "early", "late", "seen"):
        expected = np.mean([getattr(one, name) for one in every], axis=0)
        assert getattr(found, name) == pytest.approx(expected), name


def test_the_table() -> None:
    """Means over conversations, intervals over problems, the verifier against N = 2 and random stopping."""
    table = compared(four(), {"signed": 0.5})
    rules, [(rule, against)] = table["rules"], table["verifier"].items()
    assert rules["signed"]["accuracy"] == 0.25 and rules["signed"]["steps"] == 7 / 4
    assert rules["always 2"]["accuracy"] == 0.75 and rules["always 2"]["visual_tokens"] == 9
    assert rules["always 2"]["crop_hit"] == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert "crop_hit" not in compared(four(seen=None), {"signed": 0.5})["rules"]["always 2"]
    assert rules["always 3"]["too_early"] == 0.5 and rules["always 3"]["too_late"] == 0.5
    low, high = rules["always 2"]["interval"]
    assert low == 0.0 and high == 1.0
    assert rule == "signed" and (against["best_n"], against["smallest_n"]) == (2, 2)
    assert against["gap_to_smallest_n"]["mean"] == pytest.approx(-0.5)
    assert against["steps_share"] == pytest.approx(7 / 6)
    # Its times are 2, 1, 3 and never: each conversation gets each of them in a quarter of the permutations.
    random = np.array([3 / 4, 1 / 4, 1 / 4, 0]).mean()
    assert rules["signed, random"]["accuracy"] == pytest.approx(random)
    assert against["over_random"]["mean"] == pytest.approx(0.25 - random)
    assert against["over_self_stop"]["mean"] == pytest.approx(0.25 - 0.5)


def test_a_smaller_number_of_steps_that_is_nearly_as_good() -> None:
    """Of 200 conversations one is right only after the second step: one step is within a point."""
    count = 200
    correct = np.ones((count, 3))
    correct[0, 1] = 0
    looked = CappedArrays(
        problem=np.arange(count), lengths=np.full(count, 2), delta_r=np.ones((count, 2)),
        delta_r_plan=np.ones((count, 2)), correct=correct, own=np.full((count, 2), NAN), final=correct[:, 2],
        visual=np.ones((count, 3)), enough=None, left_out=0,
    )  # fmt: skip
    against = compared(looked, {"signed": -1.0})["verifier"]["signed"]
    assert (against["best_n"], against["smallest_n"]) == (2, 1)
    assert against["steps_share"] == 2.0 and against["gap_to_smallest_n"]["mean"] == pytest.approx(1 / 200)
