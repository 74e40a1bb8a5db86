"""Which threads pass through the model together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfverify.policy.threads import SampleIndex


@dataclass(slots=True)
class SessionRows:
    """The threads that pass through the model together.

    Args:
        problems: ``[B']`` their prompts' places in the batch.
        slots: ``[B', G']`` their places in the group.
        kept: ``[B', G']`` own tokens whose keys are kept.
        next: ``[B', G']`` the position of the next token.
        least: The smallest of ``kept``.
        most: The largest of ``kept``.
        neighbours: The first of ``problems`` and the end, where these are all threads of problems that stand
            next to each other, in order; else None.
    """

    problems: Tensor
    slots: Tensor
    kept: Tensor
    next: Tensor
    least: int
    most: int
    neighbours: tuple[int, int] | None

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        """The index of the threads in a tensor ``[B, G, ...]``."""
        return self.problems[:, None], self.slots

    def where(self) -> dict[SampleIndex, SampleIndex]:
        """For each thread where it stands among these."""
        slots = self.slots.tolist()
        return {(b, g): (i, j) for i, b in enumerate(self.problems.tolist()) for j, g in enumerate(slots[i])}


def neighbours(problems: Tensor, slots: Tensor, group: int) -> tuple[int, int] | None:
    """The first of ``problems`` [B'] and the end, where they and all of ``slots`` [B', G'] are in order.

    Args:
        problems: See `SessionRows`.
        slots: See `SessionRows`.
        group: G, the threads of each problem.
    """
    first, end = int(problems[0]), int(problems[-1]) + 1
    whole = slots.shape[1] == group and bool((slots[:, 1:] > slots[:, :-1]).all())
    return (first, end) if whole and len(problems) == end - first else None


def packed_rows(alive: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[B']`` and of each the places ``[B', G']`` that hold all True entries of ``alive`` [B, G].

    Rows with fewer True entries are filled up with others, whose results mean nothing.
    """
    counts = alive.sum(1)
    which = counts.nonzero().squeeze(1)
    order = alive[which].to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    return which, order[:, : int(counts.max())]
