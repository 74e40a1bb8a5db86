"""Group-normalised advantages, worked by hand and by property."""

import pytest
import torch

from selfverify.objectives import group_advantage
from tables import yaml_cases


def test_one_right_of_four():
    """R = 1, 0, 0, 0: mean 1/4; squared distances 9/16 + 3 * 1/16 = 12/16; variance (12/16)/3 = 1/4; std 1/2.

    (1 - 1/4) / (1/2) = 3/2 and (0 - 1/4) / (1/2) = -1/2.
    """
    advantage = group_advantage(torch.tensor([1.0, 0, 0, 0]), eps=0.0)
    torch.testing.assert_close(advantage, torch.tensor([1.5, -0.5, -0.5, -0.5]))


def test_epsilon_is_added_to_the_deviation():
    """R = 1, -1: mean 0, variance (1 + 1)/1 = 2, std the root of 2."""
    advantage = group_advantage(torch.tensor([1.0, -1.0]), eps=0.1)
    torch.testing.assert_close(advantage, torch.tensor([1.0, -1.0]) / (2**0.5 + 0.1))


def test_without_scale_it_is_the_distance_to_the_mean():
    """R = 0.5, 0.25, 0: mean 0.25, so 0.25, 0, -0.25."""
    advantage = group_advantage(torch.tensor([0.5, 0.25, 0.0]), scale=False)
    assert advantage.tolist() == [0.25, 0.0, -0.25]


def test_invalid_members_leave_mean_and_deviation():
    """R = 1, 0, (100): the two valid ones have mean 1/2 and variance (1/4 + 1/4)/1 = 1/2, std 0.70711.

    0.5 / 0.70711 = 0.70711. Nothing of the 100 shows.
    """
    valid = torch.tensor([True, True, False])
    advantage = group_advantage(torch.tensor([1.0, 0.0, 100.0]), valid, eps=0.0)
    torch.testing.assert_close(advantage, torch.tensor([0.5**0.5, -(0.5**0.5), 0.0]))
    for hole in (float("nan"), float("inf")):
        torch.testing.assert_close(group_advantage(torch.tensor([1.0, 0.0, hole]), valid, eps=0.0), advantage)


def test_an_unscored_reward_counts_as_invalid():
    """R = NaN, 3, 1: the others have mean 2 and variance (1 + 1)/1 = 2; 1/1.41421 = 0.70711."""
    advantage = group_advantage(torch.tensor([float("nan"), 3.0, 1.0]), eps=0.0)
    torch.testing.assert_close(advantage, torch.tensor([0.0, 0.5**0.5, -(0.5**0.5)]))


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
