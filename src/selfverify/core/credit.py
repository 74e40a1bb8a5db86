"""What a method tells the learner: for each channel of a group, what its tokens are to learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from selfverify.core.trajectory import Finish, Group


def valid_trajectories(group: Group, drop_truncated: bool) -> torch.Tensor:
    """Return ``[G]`` bool: which of a group's trajectories take part in its statistics.

    A trajectory without a verdict takes no part; with ``drop_truncated`` nor does one that was cut off.
    """
    return torch.tensor(
        [t.finish != Finish.ERROR and not (drop_truncated and t.truncated) for t in group.trajectories]
    )


@dataclass(slots=True)
class Alternatives:
    """Tokens at which every alternative gets an advantage, not only the one that was sampled.

    M such tokens of a group's trajectories with up to K alternatives; padding has probability 0.

    Args:
        rows: ``[M]`` which trajectory.
        places: ``[M]`` which of the trajectory's tokens.
        tokens: ``[M, K]`` the alternatives' ids.
        probability: ``[M, K]`` under the policy that sampled, normalised over the alternatives.
        advantage: ``[M, K]``, its mean under ``probability`` 0.

    Their loss is divided by the number of trajectories only, whatever the denominator of the other tokens is:
    how much a score should learn does not depend on the length of a response.
    """

    rows: torch.Tensor
    places: torch.Tensor
    tokens: torch.Tensor
    probability: torch.Tensor
    advantage: torch.Tensor


@dataclass(slots=True)
class Credit:
    """What one channel of a group's trajectories is to learn.

    Args:
        channel: The channel whose tokens receive it.
        advantage: ``[G]``. Exactly 0 where there is nothing to learn.
        kl_coef: Coefficient of the KL term, a number or ``[G]``.
        weight: Loss weight, a number or ``[G]``.
        valid: ``[G]`` bool; an invalid trajectory (an outage, a cut-off) takes no part at all.
        choices: Tokens of the channel that learn from all their alternatives; at those ``advantage`` is not
            used.
        holds: Whether the KL term counts also in a group in which nothing is to be learnt.
    """

    channel: str
    advantage: torch.Tensor
    kl_coef: float | torch.Tensor = 0.0
    weight: float | torch.Tensor = 1.0
    valid: torch.Tensor | None = None
    choices: Alternatives | None = None
    holds: bool = False

    @property
    def acts(self) -> bool:
        """Whether tokens are moved: by an advantage, or by the KL term alone."""
        return self.teaches or (self.holds and bool(torch.as_tensor(self.kl_coef).any()))

    @property
    def teaches(self) -> bool:
        """Whether any advantage is not 0."""
        return bool(self.advantage.any()) or (self.choices is not None and bool(self.choices.advantage.any()))
