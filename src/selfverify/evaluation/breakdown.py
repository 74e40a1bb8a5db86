"""A task's own figures, and accuracy with them by category: of what each strategy chooses, at every N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.evaluation.bootstrap import bootstrap_interval, evaluate, ratio_statistic
from selfverify.evaluation.choices import CORRECT, RULES, Chosen, choices
from selfverify.evaluation.store import Sample
from selfverify.rollouts.types import Problem
from selfverify.tasks import Task
from selfverify.tasks.base import Metric

ACCURACY = Metric("accuracy", CORRECT)
WITH_INTERVAL = ("pass@1", "majority", "best")
MOST_VALUES = 64
"""A column with more different values is no category."""

Figure = dict[str, dict[str, Any]]
"""``curves``: by rule a value for each N = 1..G. ``intervals``: of all G samples, 95 %, by rule."""


def breakdown(
    samples: Sequence[Sample], task: Task, problems: Mapping[str, Problem], seed: int = 0
) -> dict[str, Any]:
    """``metrics``: the task's figures by name; ``categories``: by column and value the number of problems,
    ``accuracy`` and these figures again.

    A `Metric` is the mean of the expected component over the problems whose choice has it, or the ratio of
    two sums of expectations. What nothing is known about is left out. Empty for a task without figures of its
    own whose problems have no categories.

    Args:
        samples: The same number for every problem.
        task: Says what is measured (`Task.judge`).
        problems: By id; images are not needed. ``meta["categories"]`` has lists of values by column.
        seed: Of the bootstrap and of the subsets.
    """
    metrics: tuple[Metric, ...] = getattr(task, "metrics", ())
    names = list(dict.fromkeys(sample.problem for sample in samples))
    columns = _columns([problems[name] for name in names])
    if not metrics and not columns:
        return {}
    chosen = choices(samples, task, problems, seed)
    found: dict[str, Any] = {}
    if metrics:
        found["metrics"] = _figures(chosen, metrics, np.ones(len(names), dtype=bool), seed)
    if columns:
        found["categories"] = {
            column: {
                value: {"problems": int(mask.sum()), **_figures(chosen, (ACCURACY, *metrics), mask, seed)}
                for value, mask in masks.items()
            }
            for column, masks in columns.items()
        }
    return found


def _columns(rows: Sequence[Problem]) -> dict[str, dict[str, NDArray[np.bool_]]]:
    """By column and value, which problems have it."""
    places: dict[str, dict[str, list[int]]] = {}
    for place, problem in enumerate(rows):
        for column, values in problem.meta.get("categories", {}).items():
            for value in values:
                places.setdefault(column, {}).setdefault(value, []).append(place)
    return {
        column: {value: np.isin(np.arange(len(rows)), own) for value, own in sorted(of.items())}
        for column, of in places.items()
        if len(of) <= MOST_VALUES
    }


def _figures(
    chosen: Chosen, metrics: Sequence[Metric], mask: NDArray[np.bool_], seed: int
) -> dict[str, Figure]:
    found = {metric.name: _figure(chosen, metric, mask, seed) for metric in metrics}
    return {name: figure for name, figure in found.items() if figure["curves"]}


def _figure(chosen: Chosen, metric: Metric, mask: NDArray[np.bool_], seed: int) -> Figure:
    """A figure of the problems in ``mask``; without the rules of which nothing is known."""
    figure: Figure = {"curves": {}, "intervals": {}}
    problems, most = int(mask.sum()), max(n for _, n in chosen)
    for rule in RULES:
        curve: list[float | None] = []
        for n in range(1, most + 1):
            parts = chosen.get((rule, n), {})
            part, over = parts.get(metric.part), parts.get(metric.over or metric.part)
            if part is None or over is None:
                break
            statistic = ratio_statistic(part.value[mask], (over.value if metric.over else part.present)[mask])
            value = evaluate(statistic, problems)
            curve.append(None if np.isnan(value) else value)
            if n == most and rule in WITH_INTERVAL:
                interval = bootstrap_interval(statistic, problems, seed=seed)
                figure["intervals"] |= {rule: list(interval)} if interval else {}
        if any(value is not None for value in curve):
            figure["curves"][rule] = curve
    return figure


SHOWN = ("pass@1", "majority", "best", "oracle")
"""Rules in tables for people; `breakdown` has the others, and every N."""


def tabulate(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows for people: ``part``, ``problems``, ``figure``, and what `SHOWN` make of all samples.

    The parts are all problems and the categories, ``COLUMN: VALUE``; empty where there was no `breakdown`.
    """
    parts: dict[str, tuple[int, dict[str, Figure]]] = {}
    if summary.get("metrics"):
        parts["all"] = summary["problems"], summary["metrics"]
    for column, values in (summary.get("categories") or {}).items():
        for value, found in values.items():
            parts[f"{column}: {value}"] = (
                found["problems"],
                {n: f for n, f in found.items() if n != "problems"},
            )
    return [
        {
            "part": part,
            "problems": problems,
            "figure": name,
            **{rule: figure["curves"].get(rule, [None])[-1] for rule in SHOWN},
        }
        for part, (problems, figures) in parts.items()
        for name, figure in figures.items()
    ]
