"""AdaPO's rewards and KL coefficients of two-turn trajectories, which depend on a problem's error rate.

A trajectory has the type i -> j: i is 1 where its first answer is right, else 0, and j says the same of its
second answer. Rewards stand in tables ``[..., 2, 2]``, indexed ``[..., i, j]``. The leading axes may be one
per problem or none; G is the trajectories of a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from .advantage import as_float, member_mask

NAMES = (("0->0", "0->1"), ("1->0", "1->1"))
"""The types of trajectories, in the places that they have in the tables."""


@dataclass(frozen=True, slots=True)
class RewardShape:
    """Bases and slopes of R_{i->j} in the error rate P (Eq. 3-5).

    The paper's text asks for K_{0->1} >= 0 and K_{1->1} <= 0, while its Table 4 prints -1 and 1 for them.
    Only the text's signs make correcting pay more where the model errs more. So these signs are the defaults,
    and others are refused. Slopes of 0 give fixed rewards.

    Args:
        base_01: R_base of 0 -> 1; the paper has it equal ``base_11``.
        base_11: R_base of 1 -> 1.
        base_10: R_base of 1 -> 0; the paper has it equal ``base_00``.
        base_00: R_base of 0 -> 0.
        k_01: Slope of 0 -> 1, at least 0.
        k_11: Slope of 1 -> 1, at most 0.
        k_10: Slope of 1 -> 0, at least 0.
        k_00: Slope of 0 -> 0, at most 0.
        threshold: theta, the error rate at which correcting and keeping pay their bases.

    Raises:
        ValueError: A slope has the wrong sign, or for some P a trajectory that ends right would earn 0 or
            less, or one that ends wrong 0 or more.
    """

    base_01: float = 1.0
    base_11: float = 1.0
    base_10: float = -1.0
    base_00: float = -1.0
    k_01: float = 1.0
    k_11: float = -1.0
    k_10: float = 0.5
    k_00: float = -0.5
    threshold: float = 0.6

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}; an error rate lies in [0, 1]")
        for name, sign in (("k_01", 1), ("k_11", -1), ("k_10", 1), ("k_00", -1)):
            if sign * getattr(self, name) < 0:
                needed = ">= 0" if sign > 0 else "<= 0"
                raise ValueError(
                    f"{name} is {getattr(self, name)} and has to be {needed} (text after Eq. 4, 5)"
                )
        # Rewards are linear in P, so it is enough to look at both ends.
        for rate in (0.0, 1.0):
            table = reward_table(torch.tensor(rate, dtype=torch.float64), self).tolist()
            for i, j in product((0, 1), (1, 0)):
                value, needed = table[i][j], "above 0" if j else "below 0"
                if not (value > 0 if j else value < 0):
                    raise ValueError(
                        f"a trajectory of type {NAMES[i][j]} would earn {value:g} at P = {rate:g}; it has to "
                        f"earn {needed} whatever the error rate"
                    )


def error_rate(first: Tensor, valid: Tensor | None = None) -> Tensor:
    """P_{0->*}: the share of a problem's first answers that are wrong (Eq. 2).

    Args:
        first: ``[..., G]``, 1 where the first answer is right, else 0. NaN (no verdict) counts as invalid.
        valid: Bool, broadcastable to ``[..., G]``: which trajectories count, in numerator and denominator.
            None means all.

    Returns:
        ``[...]``; NaN where no trajectory counts.
    """
    first = as_float(first)
    member = member_mask(first, valid)
    wrong = torch.where(member, 1 - first, 0.0)
    return wrong.sum(-1) / member.sum(-1)


def reward_table(rate: Tensor, shape: RewardShape) -> Tensor:
    """R_{i->j} = R_base + R_dyn(P) of all four types (Eq. 3-5).

    R_dyn is K (P - theta) where the second answer is right (Eq. 4), and K P where it is wrong (Eq. 5).

    Args:
        rate: ``[...]`` error rates P.
        shape: The bases, the slopes and the threshold.

    Returns:
        ``[..., 2, 2]``, indexed ``[..., i, j]``.
    """
    rate = as_float(rate)
    above = rate - shape.threshold
    r_00, r_01 = shape.base_00 + shape.k_00 * rate, shape.base_01 + shape.k_01 * above
    r_10, r_11 = shape.base_10 + shape.k_10 * rate, shape.base_11 + shape.k_11 * above
    return torch.stack([r_00, r_01, r_10, r_11], dim=-1).unflatten(-1, (2, 2))


def trajectory_reward(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the table's entry for each trajectory.

    Args:
        table: ``[..., 2, 2]`` of `reward_table`.
        first: ``[..., G]``, 1 where the first answer is right, else 0.
        second: ``[..., G]``, 1 where the second answer is right, else 0.

    Returns:
        ``[..., G]``.
    """
    kind = 2 * (first > 0.5).long() + (second > 0.5).long()
    return table.flatten(-2).gather(-1, kind)


def dynamic_kl(table: Tensor, scale: float, bases: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """KL coefficients of the first and the second turn, per problem (Eq. 7 and 8).

    Where correcting pays more than keeping, the first turn gets the larger coefficient, because it might err
    on purpose. Where keeping pays more, the second turn gets it, because it might only repeat the first. One
    of the two coefficients is always its own base.

    Args:
        table: ``[..., 2, 2]`` of `reward_table`.
        scale: lambda.
        bases: beta_base of the first and of the second turn, which the paper has equal.

    Returns:
        beta_1 and beta_2, ``[...]`` each.
    """
    gap = scale * (table[..., 0, 1] - table[..., 1, 1])
    return gap.clamp(min=0) + bases[0], (-gap).clamp(min=0) + bases[1]
