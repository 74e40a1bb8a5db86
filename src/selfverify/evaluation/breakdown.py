"""A task's own figures, and accuracy and these figures by category, for every strategy and N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.core.problem import Problem
from selfverify.evaluation.bootstrap import bootstrap_interval, on_all, ratio_statistic
from selfverify.evaluation.choices import CORRECT, Chosen, choices
from selfverify.evaluation.store import StoredSample
from selfverify.selection.strategies import STRATEGIES
from selfverify.tasks.base import Metric, Task

ACCURACY = Metric("accuracy", CORRECT)
WITH_INTERVAL = ("pass@1", "majority", "best")
MOST_VALUES = 64
"""A column with more different values than this is no category."""

Figure = dict[str, dict[str, Any]]
"""``curves``: for each strategy a value for each N = 1..G. ``intervals``: 95 % intervals at N = G."""


def breakdown(
    samples: Sequence[StoredSample], task: Task, problems: Mapping[str, Problem], seed: int = 0
) -> dict[str, Any]:
    """Return ``metrics`` and ``categories`` of a sample set, as far as there are any.

    ``metrics`` has the task's figures by name; ``categories`` has the number of problems, ``accuracy`` and
    the task's figures by column and value. A `Metric` is the mean of the expected component over the problems
    whose choice has it, or the ratio of two sums of expectations. Figures of which nothing is known are left
    out.

    Args:
        samples: The same number of samples for every problem.
        task: Says what is measured (`Task.metrics`).
        problems: The problems by id, with or without images. ``meta["categories"]`` has lists of values by
            column.
        seed: Draws the bootstrap and the subsets.
    """
    names = list(dict.fromkeys(sample.problem for sample in samples))
    columns = _columns([problems[name] for name in names])
    if not task.metrics and not columns:
        return {}
    chosen = choices(samples, task, problems, seed)
    found: dict[str, Any] = {}
    figures = (ACCURACY, *task.metrics)
    if task.metrics:
        found["metrics"] = _figures(chosen, task.metrics, np.ones(len(names), dtype=bool), seed)
    if columns:
        found["categories"] = {
            column: {
                value: {
                    "problems": int(mask.sum()),
                    **_figures(chosen, figures, mask, seed),
                }
                for value, mask in masks.items()
            }
            for column, masks in columns.items()
        }
    return found


def _columns(rows: Sequence[Problem]) -> dict[str, dict[str, NDArray[np.bool_]]]:
    """Return which of the problems ``[P]`` have each value of each column."""
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
    """Return a figure of the problems in ``mask``, without the strategies of which nothing is known."""
    figure: Figure = {"curves": {}, "intervals": {}}
    problems, most = int(mask.sum()), max(n for _, n in chosen)
    for rule in (strategy.figure for strategy in STRATEGIES.values()):
        curve: list[float | None] = []
        for n in range(1, most + 1):
            parts = chosen.get((rule, n), {})
            part, over = parts.get(metric.part), parts.get(metric.over or metric.part)
            if part is None or over is None:
                break
            statistic = ratio_statistic(part.value[mask], (over.value if metric.over else part.present)[mask])
            value = on_all(statistic, problems)
            curve.append(None if np.isnan(value) else value)
            if n == most and rule in WITH_INTERVAL:
                interval = bootstrap_interval(statistic, problems, seed=seed)
                figure["intervals"] |= {rule: list(interval)} if interval else {}
        if any(value is not None for value in curve):
            figure["curves"][rule] = curve
    return figure


SHOWN = tuple(STRATEGIES[name] for name in ("first", "majority", "best", "oracle"))
"""Strategies in tables for people; `breakdown` has the others, and every N."""


def tabulate(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows for people: ``part``, ``problems``, ``figure``, and the figure of each of `SHOWN` at N = G.

    The parts are all problems and the categories, ``COLUMN: VALUE``. There are no rows without a `breakdown`.
    """
    total = summary.get("samples_per_problem", 0)
    parts: dict[str, tuple[int, dict[str, Figure]]] = {}
    if summary.get("metrics"):
        parts["all"] = summary["problems"], summary["metrics"]
    for column, values in (summary.get("categories") or {}).items():
        for value, found in values.items():
            figures = {name: figure for name, figure in found.items() if name != "problems"}
            parts[f"{column}: {value}"] = found["problems"], figures
    return [
        {
            "part": part,
            "problems": problems,
            "figure": name,
            **{rule.at(total): figure["curves"].get(rule.figure, [None])[-1] for rule in SHOWN},
        }
        for part, (problems, figures) in parts.items()
        for name, figure in figures.items()
    ]
