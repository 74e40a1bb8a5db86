"""Two-turn figures by category: of the parts of a benchmark, and of benchmarks that share a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.evaluation.store import CORRECT_1, Sample
from selfverify.rollouts.transitions import transitions

Categories = Mapping[str, Mapping[str, Sequence[str]]]
"""By problem id the values of each column: ``{"p7": {"subject": ["algebra"]}}``."""


def turns_by_category(samples: Sequence[Sample], categories: Categories) -> dict[str, Any]:
    """`transitions` of each category's samples, by column and value, with ``problems``.

    Accuracies of both turns, what changed, the four kinds of trajectories and the conditional rates. Empty
    where answers have one turn, or problems no categories.
    """
    rows: dict[str, dict[str, list[Sample]]] = {}
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
