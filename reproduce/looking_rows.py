"""The rows of the study of looking again: several seeds on the same problems, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from reproduce.tables import grid, number, percent
from selfverify.core.errors import DataError
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import seeds_interval
from selfverify.evaluation.visual_metrics import WITHIN, CappedArrays, CappedProblem, as_arrays, outcomes
from selfverify.selection.rules import Floats
from selfverify.visual.episode import STEPS
from selfverify.visual.stopping import Kind

NO_TOOLS = "no-tools"
"""The row that looking is measured against."""
FIGURES = ("accuracy", "steps", "visual_tokens", "crop_hit", "too_early", "too_late")


@dataclass(frozen=True, slots=True)
class RowOfSeed:
    """One model in one row.

    Args:
        problems: The ids of P problems.
        figures: ``[P]`` by the names of `FIGURES`, those that are known: means over a problem's
            conversations.
    """

    problems: list[str]
    figures: dict[str, Floats]


def of_looks(rows: Mapping[int, CappedProblem], epsilons: Mapping[Kind, float]) -> dict[str, RowOfSeed]:
    """All rules on conversations that were held to the cap, by name; see `stop_outcomes.outcomes`."""
    looked = as_arrays(rows)
    made = {}
    for name, outcome in outcomes(looked, epsilons).items():
        values = (outcome.right, outcome.steps, outcome.visual, outcome.seen, outcome.early, outcome.late)
        known = {
            key: _means(looked, one) for key, one in zip(FIGURES, values, strict=True) if one is not None
        }
        made[name] = RowOfSeed([*looked.names], known)
    return made


def _means(looked: CappedArrays, values: Floats) -> Floats:
    """``[P]`` means over the conversations about each problem."""
    sums = np.bincount(looked.problem, values, minlength=looked.problems)
    means: Floats = sums / np.bincount(looked.problem, minlength=looked.problems)
    return means


def of_samples(samples: Sequence[StoredSample], visual: float) -> RowOfSeed:
    """One model's answers; lost ones are left out.

    Args:
        samples: What it has answered.
        visual: The visual tokens of a question.
    """
    found: dict[str, list[StoredSample]] = {}
    for sample in samples:
        if not sample.lost:
            found.setdefault(sample.problem, []).append(sample)
    right = np.array([np.mean([one.correct for one in few]) for few in found.values()])
    steps = np.array([np.mean([one.rewards.get(STEPS, 0.0) for one in few]) for few in found.values()])
    figures = {"accuracy": right, "steps": steps}
    if not steps.any():
        figures["visual_tokens"] = np.full(len(right), float(visual))
    return RowOfSeed([*found], figures)


def gains(rows: Mapping[str, Sequence[RowOfSeed]], rule: Kind) -> dict[str, Any]:
    """What `looking_gains` writes, of the rows that were measured.

    Differences are paired: of the same problems, with the models of the same seed. Intervals are 95 %
    bootstrap intervals over seeds and problems.

    Args:
        rows: By name one model for each of K seeds, or one for all of them.
        rule: The verifier's.

    Raises:
        DataError: A row has no problem in common with the verifier's.
    """
    for name, measured in rows.items():
        if not _shared([*rows[rule], *measured]):
            raise DataError(f"the row {name} has no problem in common with the verifier's")
    fixed = [name for name in rows if name.startswith("always ") and name != "always 0"]
    means = {name: _row(rows[name])["accuracy"] for name in fixed}
    best = max(fixed, key=lambda name: (means[name], -fixed.index(name)))
    smallest = next(name for name in fixed if means[name] >= means[best] - WITHIN)
    table = {
        name: _row(measured) | {"behind_verifier": _against(rows[rule], measured)}
        for name, measured in rows.items()
    }
    against: dict[str, Any] = {}
    for kind in get_args(Kind):
        if kind in rows:
            against[kind] = {
                "over_no_tools": _against(rows[kind], rows[NO_TOOLS]),
                "gap_to_best_n": _against(rows[kind], rows[smallest]),
                "steps_share": _share(table[kind]["steps"], table[smallest]["steps"]),
                "over_random": _against(rows[kind], rows[f"{kind}, random"]),
            }
    own = against[rule]
    return {
        "over_no_tools": own["over_no_tools"]["mean"],
        "over_no_tools_low": own["over_no_tools"]["interval"][0],
        "gap_to_best_n": own["gap_to_best_n"]["mean"],
        "gap_low": own["gap_to_best_n"]["interval"][0],
        "steps_share": own["steps_share"],
        "over_random": own["over_random"]["mean"],
        "over_random_low": own["over_random"]["interval"][0],
        "crop_hit": table[rule].get("crop_hit"),
        "rule": rule,
        "best_n": int(best.split()[1]),
        "smallest_n": int(smallest.split()[1]),
        "seeds": len(rows[rule]),
        "verifier": against,
        "rows": table,
    }


def _share(steps: float, of: float) -> float | None:
    """None where a model never looks, so that there are no steps to have a share of."""
    return steps / of if of else None


def _row(measured: Sequence[RowOfSeed]) -> dict[str, Any]:
    """Means over seeds and the problems that all of them have."""
    problems = _shared(measured)
    row: dict[str, Any] = {"problems": len(problems), "intervals": {}}
    for name in FIGURES:
        if all(name in one.figures for one in measured):
            values = _values(measured, problems, name)
            row[name], row["intervals"][name] = float(values.mean()), seeds_interval(values)
    right = _values(measured, problems, "accuracy")
    return row | {"accuracy_by_seed": right.mean(1).tolist()}


def _against(mine: Sequence[RowOfSeed], other: Sequence[RowOfSeed]) -> dict[str, Any]:
    """How much more often ``mine`` is right than another row."""
    problems = _shared([*mine, *other])
    difference = _values(mine, problems, "accuracy") - _values(other, problems, "accuracy")
    return {"mean": float(difference.mean()), "interval": seeds_interval(difference)}


def _shared(measured: Sequence[RowOfSeed]) -> list[str]:
    """The problems that all have, in order."""
    every = set.intersection(*(set(one.problems) for one in measured))
    return [problem for problem in measured[0].problems if problem in every]


def _values(measured: Sequence[RowOfSeed], problems: Sequence[str], figure: str) -> Floats:
    """``[K, P]`` a figure of each seed and problem."""
    rows = []
    for one in measured:
        place = {problem: number for number, problem in enumerate(one.problems)}
        rows.append(one.figures[figure][[place[problem] for problem in problems]])
    return np.stack(rows)


def table_of(made: Mapping[str, Any]) -> str:
    """The rows in Markdown, accuracies in percent."""
    body = []
    for name, row in made["rows"].items():
        (low, high), behind = row["intervals"]["accuracy"], row["behind_verifier"]
        body.append(
            [
                name,
                percent(row["accuracy"]),
                f"{percent(low)} to {percent(high)}",
                *(number(row.get(figure)) for figure in ("steps", "visual_tokens", "crop_hit")),
                *(percent(row.get(figure)) for figure in ("too_early", "too_late")),
                f"{percent(behind['mean'])} ({' to '.join(map(percent, behind['interval']))})",
            ]
        )
    head = ["looking ends", "right", "95 %", "steps", "visual tokens", "crop hit", "too early", "too late"]
    return grid([*head, f"{made['rule']} is ahead by"], body)
