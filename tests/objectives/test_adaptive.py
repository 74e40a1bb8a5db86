"""AdaPO Eq. 2-8 by hand, with theta 0.6, K 1, -1, 0.5, -0.5, lambda 0.01 and beta_base 0.001."""

from __future__ import annotations

import pytest
import torch

from selfverify.objectives import RewardShape, dynamic_kl, reward_table
from tables import yaml_cases

PAPER = RewardShape()


def table_at(rate: float) -> torch.Tensor:
    return reward_table(torch.tensor(rate), PAPER)


@yaml_cases
def test_rewards_by_hand(rate: float, r_00: float, r_01: float, r_10: float, r_11: float) -> None:
    expected = torch.tensor([[r_00, r_01], [r_10, r_11]])
    torch.testing.assert_close(table_at(rate), expected)


@pytest.mark.parametrize(
    ("rate", "first", "second"),
    [(0.0, 0.001, 0.013), (0.6, 0.001, 0.001), (1.0, 0.009, 0.001)],  # gaps -1.2, 0, 0.8
)
def test_kl_coefficients_by_hand(rate: float, first: float, second: float) -> None:
    found = dynamic_kl(table_at(rate), scale=0.01, bases=(0.001, 0.001))
    torch.testing.assert_close(torch.stack(found), torch.tensor([first, second]))


@yaml_cases
def test_what_would_pay_for_a_wrong_end_is_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RewardShape(**options)
