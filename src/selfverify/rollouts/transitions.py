"""What a second turn did to the first: the figures of two-turn answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def transitions(first: ArrayLike, second: ArrayLike) -> dict[str, float]:
    """Accuracies, what changed between the turns, and the four kinds of trajectories.

    Args:
        first: ``[N]``, whether each first answer is right.
        second: ``[N]``, whether the second is.

    Returns:
        ``acc@t1``, ``acc@t2`` and ``delta`` = acc@t2 - acc@t1; ``0->0``, ``0->1``, ``1->0`` and ``1->1`` as
        shares of all N, so that ``delta`` = ``0->1`` - ``1->0`` (the paper's M_0->1, effective correction,
        and M_1->0, misjudgment); ``corrected``, the share of wrong first answers that became right, and
        ``spoiled``, of right ones that became wrong: left out where there is none. Empty if N is 0.
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if before.size == 0:
        return {}
    shares = {f"{i:d}->{j:d}": float(((before == i) & (after == j)).mean()) for i in (0, 1) for j in (0, 1)}
    found = {"acc@t1": float(before.mean()), "acc@t2": float(after.mean())}
    found |= {"delta": shares["0->1"] - shares["1->0"], **shares}
    if not before.all():
        found["corrected"] = float(after[~before].mean())
    if before.any():
        found["spoiled"] = float((~after[before]).mean())
    return found
