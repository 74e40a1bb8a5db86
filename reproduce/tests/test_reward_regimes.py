"""Advantages of fixed and of adaptive rewards, by hand for pairs and against draws of larger groups."""

from __future__ import annotations

import pytest
import torch

from commands import command
from reproduce.reward_regimes import ARMS, app, groups, regimes
from selfverify.objectives.adaptive import error_rate, reward_table, trajectory_reward
from selfverify.objectives.advantage import group_advantage

RATES = (0.392, 0.153, 0.002, 0.453)


def test_pairs_by_hand() -> None:
    """Of two trajectories one ends right: +-1/sqrt 2 whatever it earns, so that scaled rewards are alike."""
    assert float(groups(RATES, 2)[0].sum()) == pytest.approx(1)
    found = regimes(RATES, size=2)
    # A kept and a wrong answer push up, a corrected and a spoiled one down; others have equal firsts.
    push = 2 * (0.453 * 0.392 - 0.153 * 0.002) / 2**0.5 / 2
    for correlation, pushed in found.values():
        assert (correlation, pushed) == (pytest.approx(1, abs=1e-6), pytest.approx(push, rel=1e-3))


def test_groups_of_eight_against_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.multinomial(torch.tensor(RATES), 8 * 20_000, True, generator=generator).reshape(-1, 8)
    first, second = (kinds >= 2).double(), (kinds % 2).double()
    mixed = second.amin(-1) != second.amax(-1)
    first, second = first[mixed], second[mixed]
    drawn = {
        name: group_advantage(
            trajectory_reward(reward_table(error_rate(first), shape), first, second), scale=False
        )
        for name, shape in ARMS.items()
    }
    for name, (correlation, push) in regimes(RATES, scale=False).items():
        both = torch.stack([drawn[name].ravel(), drawn["fixed"].ravel()])
        assert torch.corrcoef(both)[0, 1].item() == pytest.approx(correlation, abs=0.01)
        assert (drawn[name] * first).mean(-1).sum().item() / 20_000 == pytest.approx(push, abs=0.01)


def test_the_command() -> None:
    shown = command(*map(str, RATES), of=app)
    assert shown.output.count("\n") == 2 + len(ARMS)
    command("0.5", "0.5", code=2, of=app)
