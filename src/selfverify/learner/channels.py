"""The channels of an optimiser batch, and what of a group one of them learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from selfverify.learner.streams import TokenStreams
from selfverify.objectives import UNTRAINED


def channel_names(groups: Sequence[TokenStreams]) -> list[str]:
    """Return the channels that have trained tokens in any of the groups, in the order of the credits."""
    return list(
        dict.fromkeys(
            name
            for group in groups
            for place, name in enumerate(group.channels)
            if bool((group.channel_gr == place).any())
        )
    )


def only(group: TokenStreams, channel: str) -> TokenStreams:
    """Return ``group`` with the tokens of one channel trained, and the choices among these tokens."""
    places = torch.tensor([place for place, name in enumerate(group.channels) if name == channel])
    channel_gr = torch.where(torch.isin(group.channel_gr, places), group.channel_gr, UNTRAINED)
    choices = group.choices
    if choices is None or not bool((channel_gr[choices.rows, choices.places] != UNTRAINED).any()):
        return replace(group, channel_gr=channel_gr, choices=None, choice_weight_m=None)
    return replace(group, channel_gr=channel_gr)


def chosen_alternatives(groups: Sequence[TokenStreams], parts: Sequence[TokenStreams]) -> Tensor:
    """Return ``[M]`` bool: which tokens with choices of all ``groups`` are those of ``parts``."""
    flags = [
        torch.full((len(group.choices.rows),), part.choices is not None)
        for group, part in zip(groups, parts, strict=True)
        if group.choices is not None
    ]
    return torch.cat(flags) if flags else torch.zeros(0, dtype=torch.bool)
