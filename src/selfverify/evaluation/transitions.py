"""What a second turn did to the first: the figures of two-turn answers, as a whole and by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from selfverify.evaluation.bootstrap import Statistic, mean_statistic, ratio_statistic
from selfverify.evaluation.store import CORRECT_1, StoredSample
from selfverify.selection.rules import Floats

Categories = Mapping[str, Mapping[str, Sequence[str]]]
"""The values of each column by problem id: ``{"p7": {"subject": ["algebra"]}}``."""


def turn_shares(first: ArrayLike, second: ArrayLike) -> dict[str, Floats]:
    """Return the shares ``[...]`` of the answers ``[..., N]`` by what the second turn did to them.

    Args:
        first: ``[..., N]``, whether each first answer is right.
        second: ``[..., N]``, whether the second is.

    Returns:
        ``acc@t1``, ``acc@t2`` and ``delta`` = acc@t2 - acc@t1; ``0->0``, ``0->1``, ``1->0`` and ``1->1``, so
        that ``delta`` = ``0->1`` - ``1->0`` (the paper's M_0->1, effective correction, and M_1->0,
        misjudgment).
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    kinds = {f"{i:d}->{j:d}": ((before == i) & (after == j)).mean(-1) for i in (0, 1) for j in (0, 1)}
    accuracies = {"acc@t1": before.mean(-1), "acc@t2": after.mean(-1)}
    return accuracies | {"delta": kinds["0->1"] - kinds["1->0"], **kinds}


def transitions(first: ArrayLike, second: ArrayLike) -> dict[str, float]:
    """Return the `turn_shares` of N answers, ``corrected`` and ``spoiled``.

    ``corrected`` is the share of the wrong first answers that became right, ``spoiled`` the share of the
    right first answers that became wrong; each is left out where there are no such first
    answers. Without answers there is nothing.
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if before.size == 0:
        return {}
    found = {name: float(share) for name, share in turn_shares(before, after).items()}
    if not before.all():
        found["corrected"] = float(after[~before].mean())
    if before.any():
        found["spoiled"] = float((~after[before]).mean())
    return found


def turn_statistics(first: ArrayLike, second: ArrayLike) -> dict[str, Statistic]:
    """Return the figures of `transitions`, named ``turns.*``, as functions of problem weights.

    Args:
        first: ``[P, G]``, whether each first answer is right.
        second: ``[P, G]``, whether the second is.
    """
    shares = turn_shares(np.asarray(first) > 0.5, np.asarray(second) > 0.5)
    found = {name: mean_statistic(share) for name, share in shares.items()}
    found["corrected"] = ratio_statistic(shares["0->1"], 1 - shares["acc@t1"])
    found["spoiled"] = ratio_statistic(shares["1->0"], shares["acc@t1"])
    return {f"turns.{name}": statistic for name, statistic in found.items()}


def turns_by_category(samples: Sequence[StoredSample], categories: Categories) -> dict[str, Any]:
    """Return `transitions` of each category's samples and its number of ``problems``, by column and value.

    The result is empty where answers have one turn, or problems no categories.
    """
    rows: dict[str, dict[str, list[StoredSample]]] = {}
    for sample in samples:
        if CORRECT_1 not in sample.rewards:
            continue
        for column, values in categories.get(sample.problem, {}).items():
            for value in values:
                rows.setdefault(column, {}).setdefault(str(value), []).append(sample)
    return {
        column: {
            value: {
                "problems": len({sample.problem for sample in own}),
                **transitions([s.rewards[CORRECT_1] > 0 for s in own], [s.correct for s in own]),
            }
            for value, own in sorted(of.items())
        }
        for column, of in rows.items()
    }
