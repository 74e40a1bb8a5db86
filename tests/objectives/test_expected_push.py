"""Pushes by hand, and that they are the gradients that they say they are."""

from __future__ import annotations

import math

import pytest
import torch

from selfverify.objectives import (
    RewardShape,
    binary_end,
    erring_gain,
    first_turn_push,
    reward_table,
)


def fixed(gap: float) -> RewardShape:
    """Two-turn GRPO that pays corrections ``gap`` more than kept answers."""
    return RewardShape(base_01=1 + gap, k_01=0.0, k_11=0.0, k_10=0.0, k_00=0.0)


def test_erring_pays_above_the_breakeven_gap() -> None:
    """Kept .7, corrected .35: (R_01 + 1) .35 against 2 * .7 = 1.4, equal at R_01 = 3, a gap of 2.

    With a gap of 1 erring costs 1.4 - 3 * .35 = .35, with one of 4 it gains 6 * .35 - 1.4 = .7.
    """
    for gap, gain in ((1.0, -0.35), (2.0, 0.0), (4.0, 0.7)):
        table = reward_table(torch.tensor(0.5), fixed(gap))
        assert float(erring_gain(table, 0.7, 0.35)) == pytest.approx(gain)


def test_adapo_with_perfect_second_turns_pays_for_erring_above_theta() -> None:
    """All ends are right, so R_01 - R_11 = 2 (P - theta) is left: 0 at .6, and .4 at .8."""
    rates = torch.tensor([0.2, 0.6, 0.8])
    gain = erring_gain(reward_table(rates, RewardShape()), 1.0, 1.0)
    torch.testing.assert_close(gain, torch.tensor([-0.8, 0.0, 0.4]))


def test_adapo_with_second_turns_that_copy_never_pays_for_erring() -> None:
    """Kept 1, corrected 0: R_00 - R_11 = (-1 - P/2) - (1.6 - P), so -2.6 at P = 0 and -2.1 at P = 1."""
    gain = erring_gain(reward_table(torch.tensor([0.0, 1.0]), RewardShape()), 1.0, 0.0)
    torch.testing.assert_close(gain, torch.tensor([-2.6, -2.1]))


def test_first_turn_push_by_hand() -> None:
    """Types 1->1, 1->0, 0->1, 0->0, gap 1: rewards 1, -1, 2, -1, mean .25; of right ones .75 and -1.25.

    Their sum over 4 is -.125; the unbiased deviation is sqrt((.5625 + 1.5625 + 3.0625 + 1.5625) / 3) = 1.5.
    """
    first, second = torch.tensor([1.0, 1, 0, 0]), torch.tensor([1.0, 0, 1, 0])
    assert float(first_turn_push(first, second, fixed(1.0), scale=False)) == pytest.approx(-0.125)
    assert float(first_turn_push(first, second, fixed(1.0), eps=0.0)) == pytest.approx(-0.125 / 1.5)
    assert float(first_turn_push(first, second, fixed(0.0), scale=False)) == 0


def test_first_turn_push_where_second_answers_are_equal() -> None:
    """They teach nothing (Appendix A.2), though 1->1 and 0->1 are paid differently."""
    first = torch.tensor([[1.0, 0, 0], [1, 1, 0]])
    second = torch.tensor([[1.0, 1, 1], [0, 0, 0]])
    assert first_turn_push(first, second, fixed(2.0)).tolist() == [0, 0]
    # Where such groups teach: 1->1 earns 2/3 less than the mean of 7/3; what ends wrong earns -1 alike.
    pushed = first_turn_push(first, second, fixed(2.0), scale=False, agreeing=True)
    torch.testing.assert_close(pushed, torch.tensor([-4 / 9, 0.0]))


def test_the_more_answers_are_right_the_worse_the_binary_reward_ends() -> None:
    """Where the preference reward would keep .76."""
    ends = [binary_end(right, 0.7602499).auc for right in (0.95, math.e / (1 + math.e), 0.5)]
    assert ends == sorted(ends) and ends[-1] < 0.76


@pytest.mark.parametrize(("right", "auc"), [(0.0, 0.7), (1.0, 0.7), (0.5, 0.5), (0.5, 1.0)])
def test_binary_end_refuses_what_has_no_end(right: float, auc: float) -> None:
    with pytest.raises(ValueError, match="binary_end"):
        binary_end(right, auc)
