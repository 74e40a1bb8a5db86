"""A task's own figures, and all figures by category, for every strategy and N.

A strategy's choice among N of G samples is a mixture of samples, whose components are stored, or, where votes
over boxes make a new box, of new boxes, whose components the task is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.core.problem import Problem
from selfverify.evaluation.metrics import HEADLINE, SampleTable
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.evaluation.statistics import Statistic, interval, measure, ratio_statistic, transitions
from selfverify.selection.rules import Floats, box_iou
from selfverify.selection.strategies import STRATEGIES, Strategy, blocks, mixtures
from selfverify.tasks.base import EVERY, Metric, Task

CORRECT = "correct"
"""The component that every answer has."""
ACCURACY = Metric("accuracy", CORRECT)
WITH_INTERVAL = ("pass@1", "majority", "best")

Figure = dict[str, dict[str, Any]]
"""``curves``: for each strategy a value for each N = 1..G. ``intervals``: 95 % intervals at N = G."""

Columns = Mapping[str, Mapping[str, NDArray[np.bool_]]]
"""Which of the problems ``[P]`` belong to each category, by column and value."""

Choice = tuple[str, int]
"""A strategy, by its `Strategy.figure`, and N."""


def breakdown(
    samples: Sequence[StoredSample],
    task: Task,
    problems: Mapping[str, Problem],
    headline: str = HEADLINE,
) -> dict[str, Any]:
    """Return ``turns_by_category``, ``metrics`` and ``categories`` of a sample set, as far as there are any.

    ``metrics`` has the task's figures by name; ``categories`` has the number of problems, ``accuracy`` and
    the task's figures by column and value. A `Metric` is the mean of the expected component over the problems
    whose choice has it, or the ratio of two sums of expectations. Figures of which nothing is known are left
    out.

    Args:
        samples: The same number of samples for every problem.
        task: Says what is measured (`Task.metrics`).
        problems: The problems by id, with or without images. ``meta["categories"]`` has lists of values by
            column.
        headline: The scores that choices are made by (`EvaluationConfig.score`).
    """
    asked = [problems[name] for name in dict.fromkeys(sample.problem for sample in samples)]
    columns = columns_of([problem.meta.get("categories", {}) for problem in asked])
    if not task.metrics and not columns:
        return {}
    table = SampleTable(samples, headline=headline)
    chosen = choices(table, task, problems)
    found = {
        "turns_by_category": turns_by_category(table, columns),
        "metrics": _figures(chosen, task.metrics, np.ones(len(asked), dtype=bool)),
        "categories": by_value(columns, lambda mask: _figures(chosen, (ACCURACY, *task.metrics), mask)),
    }
    return {name: part for name, part in found.items() if part}


def by_value(
    columns: Columns, measure: Callable[[NDArray[np.bool_]], Mapping[str, Any]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return each category's number of ``problems`` and what is measured of them, by column and value."""
    return {
        column: {value: {"problems": int(mask.sum()), **measure(mask)} for value, mask in masks.items()}
        for column, masks in columns.items()
    }


def columns_of(categories: Sequence[Mapping[str, Sequence[str]]]) -> Columns:
    """Return the `Columns` of problems ``[P]``, of which each has lists of values by column."""
    places: dict[str, dict[str, list[int]]] = {}
    for place, own in enumerate(categories):
        for column, values in own.items():
            for value in values:
                places.setdefault(column, {}).setdefault(value, []).append(place)
    return {
        column: {value: np.isin(np.arange(len(categories)), own) for value, own in sorted(of.items())}
        for column, of in places.items()
    }


def turns_by_category(table: SampleTable, columns: Columns) -> dict[str, Any]:
    """Return `transitions` of each category's samples and its number of ``problems``, by column and value.

    The result is empty where answers have one turn, or problems no categories.
    """
    if CORRECT_1 not in table.rewards:
        return {}
    first, second = table.rewards[CORRECT_1] > 0, table.correct > 0
    return by_value(columns, lambda mask: transitions(first[mask].ravel(), second[mask].ravel()))


@dataclass(slots=True)
class Expected:
    """One component of the choices, per problem ``[P]``.

    Args:
        value: The expectation of the component, counting 0 where the choice lacks it.
        present: The probability that the choice has the component.
    """

    value: Floats
    present: Floats


def choices(
    table: SampleTable,
    task: Task,
    problems: Mapping[str, Problem],
    among: Sequence[Strategy] = tuple(STRATEGIES.values()),
    sizes: Sequence[int] | None = None,
) -> dict[Choice, dict[str, Expected]]:
    """Expected components of what each strategy chooses, for N = 1..G, by what chooses and by name.

    They are means over the size-N subsets of the samples. Strategies that need scores are left out where
    there are none, and votes of what cannot be compared. Components are `CORRECT`, `EVERY`, each sample's
    rewards, and what `Task.answer_parts` gives. The oracle chooses a right answer for all figures.

    Args:
        table: The samples.
        task: Measures boxes that votes made (`Task.answer_parts`).
        problems: The problems by id; their images are not needed.
        among: The strategies.
        sizes: The numbers N of candidates; None is all.
    """
    count, total = table.correct.shape
    candidates = table.candidates(table.headline)
    if candidates.boxes is None and task.kind == "continuous":
        candidates = replace(candidates, boxes=np.full((count, total, 4), np.nan))  # not one could be read
    scored = not np.isnan(candidates.score).all()
    strategies = [s for s in among if (scored or s.needs != "score") and (table.comparable or not s.compares)]
    stored = table.rewards | {CORRECT: table.correct, EVERY: np.ones_like(table.correct)}
    found: dict[Choice, dict[str, Expected]] = {}

    def add(choice: Choice, rows: slice | int, share: Floats, parts: Mapping[str, Floats]) -> None:
        """Note the components ``[..., M]`` of what is chosen with probabilities ``share`` ``[..., M]``."""
        of = found.setdefault(choice, {})
        for name, values in parts.items():
            known = ~np.isnan(values)
            expected = of.setdefault(name, Expected(np.zeros(count), np.zeros(count)))
            expected.value[rows] = (share * np.where(known, values, 0.0)).sum(-1)
            expected.present[rows] = (share * known).sum(-1)

    for block in blocks(count):
        part = candidates.rows(block)
        chosen = {
            (strategy.figure, n): mixture
            for n in sizes or range(1, total + 1)
            for strategy, mixture in zip(strategies, mixtures(strategies, part, n), strict=True)
        }
        parts = {name: values[block].copy() for name, values in stored.items()}
        if part.boxes is not None:
            votes = {choice: mixture for choice, mixture in chosen.items() if mixture.boxes is not None}
            for place, name in enumerate(table.problems[block]):
                made = {choice: mixture.likely(place) for choice, mixture in votes.items()}
                own, *voted = _measure(task, problems[name], part.boxes[place], made)
                for (choice, (share, _)), measured in zip(made.items(), voted, strict=True):
                    add(choice, block.start + place, share, measured)
                for component, values in own.items():
                    parts.setdefault(component, np.full(part.keys.shape, np.nan))[place] = values
        for choice, mixture in chosen.items():
            if mixture.boxes is None:
                add(choice, block, mixture.probability, parts)
    return found


def _measure(
    task: Task, problem: Problem, boxes: Floats, made: Mapping[Choice, tuple[Floats, Floats]]
) -> list[dict[str, Floats]]:
    """Return the components of the samples' boxes ``[G, 4]`` and of each vote's boxes ``[M, 4]``.

    One call measures all boxes of a problem, since its mask may have to be drawn for it.
    """
    groups = [boxes, *(voted for _, voted in made.values())]
    found = task.answer_parts(problem, np.concatenate(groups))
    ends = np.cumsum([len(group) for group in groups])[:-1]
    split = {name: np.split(values, ends) for name, values in found.items()}
    measured = [{name: values[i] for name, values in split.items()} for i in range(len(groups))]
    for group, parts in zip(groups[1:], measured[1:], strict=True):
        parts[CORRECT] = (box_iou(group, problem.target) > 0.5).astype(np.float64)
    return measured


def _figures(
    chosen: Mapping[Choice, Mapping[str, Expected]], metrics: Sequence[Metric], mask: NDArray[np.bool_]
) -> dict[str, Figure]:
    """Return figures of the problems in ``mask``, without what nothing is known of."""
    figures: dict[str, Figure] = {metric.name: {"curves": {}, "intervals": {}} for metric in metrics}
    most = max(n for _, n in chosen)
    for metric, rule in product(metrics, [strategy.figure for strategy in STRATEGIES.values()]):
        found = [_statistic(chosen.get((rule, n), {}), metric, mask) for n in range(1, most + 1)]
        values = [statistic.on_all() for statistic in found if statistic is not None]
        if not np.isnan(values).all():
            own = [None if np.isnan(value) else value for value in values]
            figures[metric.name]["curves"][rule] = own
        if rule in WITH_INTERVAL and found[-1] is not None:
            ends = interval([measure(found[-1])])
            figures[metric.name]["intervals"] |= {rule: ends} if ends else {}
    return {name: figure for name, figure in figures.items() if figure["curves"]}


def _statistic(parts: Mapping[str, Expected], metric: Metric, mask: NDArray[np.bool_]) -> Statistic | None:
    """Return a metric of the problems in ``mask``; None where the choices have no such components."""
    part, over = parts.get(metric.part), parts.get(metric.over or metric.part)
    if part is None or over is None:
        return None
    if metric.needs is not None:
        needed, least = parts.get(metric.needs[0]), metric.needs[1]
        if needed is None or not needed.value[mask].sum() >= least * needed.present[mask].sum() > 0:
            return None
    return ratio_statistic(part.value[mask], (over.value if metric.over else part.present)[mask])


MOST_VALUES = 20
"""Values of a category that are shown to people; a column of more is left to metrics.json."""
SHOWN = tuple(STRATEGIES[name] for name in ("first", "majority", "best", "oracle"))
"""Strategies in tables for people; `breakdown` has the others, and every N."""


def tabulate(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows for people: ``part``, ``problems``, ``figure``, and the figure of each of `SHOWN` at N = G.

    The parts are all problems and the categories, ``COLUMN: VALUE``, but for columns of more than
    `MOST_VALUES` values. A column in which no row has anything is left out. There are no rows without a
    `breakdown`.
    """
    parts = {"all": (summary.get("metrics") or {}) | {"problems": summary.get("problems")}}
    for column, values in (summary.get("categories") or {}).items():
        if len(values) <= MOST_VALUES:
            parts |= {f"{column}: {value}": found for value, found in values.items()}
    rows = [
        {
            "part": part,
            "problems": found.get("problems"),
            "figure": name,
            **{
                rule.at(summary.get("samples_per_problem", 0)): figure["curves"].get(rule.figure, [None])[-1]
                for rule in SHOWN
            },
        }
        for part, found in parts.items()
        for name, figure in found.items()
        if name != "problems"
    ]
    empty = {key for key in (rows[0] if rows else ()) if all(row[key] is None for row in rows)}
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]
