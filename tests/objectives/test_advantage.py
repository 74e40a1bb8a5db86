"""Group-normalised advantages, at their edges."""

import pytest
import torch

from selfverify.objectives import group_advantage
from tables import yaml_cases


@yaml_cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_compare_is_exactly_zero(rewards, valid, dtype):
    valid = None if valid is None else torch.tensor(valid)
    assert group_advantage(torch.tensor(rewards, dtype=dtype), valid).tolist() == [0.0] * len(rewards)


def test_sums_in_another_order_are_equal_rewards():
    """a + b, (a + 1) + b - 1 and (b + 1) + a - 1 in float32, for a = 0.2 * 0.7 and b = 0.8 * 0.9."""
    a, b = torch.tensor(0.2, dtype=torch.float32) * 0.7, torch.tensor(0.8, dtype=torch.float32) * 0.9
    rewards = torch.stack([a + b, (a + 1) + b - 1, (b + 1) + a - 1])
    assert len(set(rewards.tolist())) > 1
    assert group_advantage(rewards).tolist() == [0.0, 0.0, 0.0]


def test_integers_and_halves_become_float32():
    assert group_advantage(torch.tensor([1, 0])).dtype == torch.float32
    assert group_advantage(torch.tensor([1, 0], dtype=torch.bfloat16)).dtype == torch.float32
    assert group_advantage(torch.tensor([1, 0], dtype=torch.float64)).dtype == torch.float64


def test_an_infinite_reward_is_an_error():
    with pytest.raises(ValueError, match="infinite"):
        group_advantage(torch.tensor([1.0, float("inf")]))
