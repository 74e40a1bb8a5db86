"""Pushes by hand, and that they are the gradients that they say they are."""

from __future__ import annotations

import math

import pytest
import torch

from selfverify.objectives import (
    RewardShape,
    binary_end,
    breakeven_gap,
    entangled_margin,
    erring_gain,
    first_turn_push,
    margin_signal,
    reward_table,
    score_push,
)


def fixed(gap: float) -> RewardShape:
    """Two-turn GRPO that pays corrections ``gap`` more than kept answers."""
    return RewardShape(base_01=1 + gap, k_01=0.0, k_11=0.0, k_10=0.0, k_00=0.0)


def test_erring_pays_above_the_breakeven_gap() -> None:
    """Kept .7, corrected .35: (R_01 + 1) .35 against 2 * .7 = 1.4, equal at R_01 = 3, a gap of 2.

    With a gap of 1 erring costs 1.4 - 3 * .35 = .35, with one of 4 it gains 6 * .35 - 1.4 = .7.
    """
    assert breakeven_gap(0.7, 0.35) == pytest.approx(2.0)
    for gap, gain in ((1.0, -0.35), (2.0, 0.0), (4.0, 0.7)):
        table = reward_table(torch.tensor(0.5), fixed(gap))
        assert float(erring_gain(table, 0.7, 0.35)) == pytest.approx(gain)


def test_breakeven_gap_at_its_ends() -> None:
    """Redraws keep and correct alike: any gap is too much. Nothing corrected: no gap is."""
    assert breakeven_gap(0.4, 0.4) == 0
    assert breakeven_gap(0.4, 0.0) == math.inf
    assert breakeven_gap(0.6, 0.3, positive=2.0, negative=-1.0) == pytest.approx(3.0)


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


def test_score_push_by_hand() -> None:
    """Surprises .2, -.1, 0 (malformed), -.3 with advantages 1, -1, 5, 0: (.2 + .1) / 4 up together.

    Right, wrong, wrong, wrong: worth .75, -.25, so (.2 * .75 - .1 * .25) / 4 apart.
    """
    drift, separation = score_push(
        torch.tensor([1.0, -1, 5, 0]),
        torch.tensor([0.9, 0.5, torch.nan, 0.2]),
        torch.tensor([0.7, 0.6, torch.nan, 0.5]),
        torch.tensor([1.0, 0, 0, 0]),
    )
    assert float(drift) == pytest.approx(0.075) and float(separation) == pytest.approx(0.125 / 4)


def test_where_the_binary_reward_ends() -> None:
    """AUC .7602 is d = 1. Half right: the threshold is 0, so Phi(1/2) and Phi(-1/2) are high.

    With odds e (p = .731) it is -1: Phi(3/2) and Phi(1/2). The preference reward would keep .7602.
    """
    even = binary_end(0.5, 0.7602499)
    assert (even.high_right, even.high_wrong) == pytest.approx((0.691462, 0.308538), abs=1e-5)
    assert even.auc == pytest.approx(0.691462, abs=1e-5)
    mostly = binary_end(math.e / (1 + math.e), 0.7602499)
    assert (mostly.high_right, mostly.high_wrong) == pytest.approx((0.933193, 0.691462), abs=1e-5)
    assert binary_end(0.95, 0.76).auc < mostly.auc < even.auc < 0.76


@pytest.mark.parametrize(("right", "auc"), [(0.0, 0.7), (1.0, 0.7), (0.5, 0.5), (0.5, 1.0)])
def test_binary_end_refuses_what_has_no_end(right: float, auc: float) -> None:
    with pytest.raises(ValueError, match="binary_end"):
        binary_end(right, auc)


def test_entangled_margin_by_hand() -> None:
    """G = 2: u (p - (1 - p)) = u (2p - 1). A worse answer is never preferred by 1, but for p = u = 1."""
    assert entangled_margin(0.75, 0.8, 2) == pytest.approx(0.4)
    assert entangled_margin(0.5, 0.8, 8) == 0
    assert entangled_margin(0.25, 0.8, 2) == pytest.approx(-0.4)
    assert entangled_margin(1.0, 1.0, 8) == 1


def test_margin_signal_by_hand() -> None:
    """Rewards 0, 0, .1, .5: distances .1, .1, .5, .5, .4 (and one 0). Above .2 three of five stay.

    They hold 1.4 of 1.6: 1.4 / 1.6 / sqrt(.6).
    """
    rewards = torch.tensor([[0.0, 0.0, 0.1, 0.5]])
    assert margin_signal(rewards, 0.0) == pytest.approx((1.0, 1.0))
    assert margin_signal(rewards, 0.2) == pytest.approx((0.6, 1.4 / 1.6 / math.sqrt(0.6)))
    assert margin_signal(rewards, 0.9) == (0.0, 0.0)
    assert all(math.isnan(x) for x in margin_signal(torch.zeros(1, 3), 0.0))
