"""By calculation: whether runs can tell AdaPO's adaptive rewards from fixed ones, and what first turns learn.

    python -m reproduce.reward_regimes .392 .153 .002 .453

The arguments are the shares of all answers 0->0, 0->1, 1->0 and 1->1 before training (`turns` of an
evaluation). All groups are enumerated, at the chance that they have at these rates; groups whose second
answers are all alike teach nothing (Appendix A.2). Where the advantages by two kinds of rewards correlate by
.99, no run can tell them apart. *push* is `first_turn_push`: below 0, first turns are taught to err. Where
problems differ in their rates, both are other than here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Annotated

import torch
import typer
from torch import Tensor

from reproduce.scripts import script
from reproduce.tables import grid
from selfverify.core.errors import ConfigError
from selfverify.objectives.adaptive import RewardShape, error_rate, reward_table, trajectory_reward
from selfverify.objectives.advantage import group_advantage
from selfverify.objectives.expected_push import first_turn_push

ARMS = {
    "fixed": RewardShape(k_01=0, k_11=0, k_10=0, k_00=0),
    "adaptive, the paper's K and θ": RewardShape(),
    "fixed, corrections earn 2 more": RewardShape(base_01=3, k_01=0, k_11=0, k_10=0, k_00=0),
    "adaptive, K₀₁ = 4, θ = .1": RewardShape(k_01=4, threshold=0.1),
}


def groups(rates: Sequence[float], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return all N groups up to order: their chance ``[N]``, first and second answers ``[N, size]``."""
    kinds = torch.tensor([*combinations_with_replacement(range(4), size)])
    many = torch.stack([(kinds == kind).sum(-1) for kind in range(4)], -1).double()
    ways = math.lgamma(size + 1) - torch.lgamma(many + 1).sum(-1)
    chance = torch.exp(ways + torch.xlogy(many, torch.tensor(rates, dtype=torch.float64)).sum(-1))
    return chance, (kinds >= 2).double(), (kinds % 2).double()


def regimes(rates: Sequence[float], size: int = 8, scale: bool = True) -> dict[str, tuple[float, float]]:
    """Return each arm's correlation of advantages with those of fixed rewards, and its push, by name.

    Args:
        rates: The shares 0->0, 0->1, 1->0 and 1->1 of all trajectories, which sum to 1.
        size: G.
        scale: Whether advantages are divided by a group's standard deviation (`method.scale_advantage`).
    """
    chance, first, second = groups(rates, size)
    weights = torch.where(second.amin(-1) < second.amax(-1), chance, 0.0)[:, None]
    made = {}
    for name, shape in ARMS.items():
        reward = trajectory_reward(reward_table(error_rate(first), shape), first, second)
        made[name] = group_advantage(reward, scale=scale) * weights.sqrt()
    fixed = made["fixed"]
    return {
        name: (
            float((own * fixed).sum() / (own.norm() * fixed.norm())),
            float(chance @ first_turn_push(first, second, ARMS[name], scale=scale)),
        )
        for name, own in made.items()
    }


def tables(
    rates: Annotated[list[float], typer.Argument(help="Shares of all answers: 0->0, 0->1, 1->0 and 1->1.")],
    scale: Annotated[bool, typer.Option(help="Divide advantages by the group's deviation.")] = True,
) -> None:
    """Print how alike the advantages of fixed and adaptive rewards are at these rates."""
    if len(rates) != 4 or min(rates) < 0 or not math.isclose(sum(rates), 1, abs_tol=0.01):
        raise ConfigError(f"{rates}: four shares that sum to 1")
    found = regimes([rate / sum(rates) for rate in rates], scale=scale)
    rows = [[name, *(f"{value:+.3f}" for value in figures)] for name, figures in found.items()]
    typer.echo(grid(["rewards", "correlation", "push"], rows))


app = script(tables)

if __name__ == "__main__":
    app()
