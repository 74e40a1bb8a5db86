"""The figures of the papers' tables for a sample set: choices among N, and two turns, by category.

Every figure is a sum over problems divided by another one (`selfverify.tasks.base.Metric`). This is what
ADPO's Tables 2 to 5 and 11 to 13 and AdaPO's Table 1 are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reproduce.statistics import MeasuredRun, measure_run, ratio_run
from reproduce.tables import Column
from selfverify.agents.task import AgentTask
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import ACCURACY, Columns, choices
from selfverify.evaluation.evaluate import target_boxes
from selfverify.evaluation.metrics import HEADLINE, SampleTable
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.evaluation.statistics import turn_statistics
from selfverify.selection.rules import Floats
from selfverify.selection.strategies import STRATEGIES, find_strategy
from selfverify.tasks.base import Metric, Task

SIZES = (1, 4, 8, 12)
"""The numbers of samples in ADPO's tables."""
ALL = "all"
"""The category of all problems."""

AGENTS = ("SR", "Sub-SR", "ROR")
"""AndroidLab's figures that are shares of all problems."""

LABELS = {
    "accuracy": "acc", "box_giou": "box gIoU", "box_ciou": "box cIoU", "box_acc@0.5": "ACC",
    "mask_giou": "gIoU", "mask_ciou": "cIoU", "type_accuracy": "Type", "grounding_accuracy": "Grounding",
    "step_success": "SR", "delta": "Δ", "0->1": "M₀→₁", "1->0": "M₁→₀",
}  # fmt: skip
"""The papers' names of figures."""
TURN_FIGURES = ("acc@t1", "acc@t2", "delta", "0->1", "1->0")
"""AdaPO's figures (its Table 1 and Fig. 4 and 5), by `selfverify.evaluation.statistics.transitions`."""


class Place(NamedTuple):
    """The column of a figure.

    Args:
        benchmark: What was measured; empty where there is one.
        category: ``COLUMN: VALUE``, or `ALL`.
        figure: The task's figure, or ``accuracy``.
    """

    benchmark: str
    category: str
    figure: str


def columns_for(places: Iterable[Place]) -> list[Column]:
    """The columns of these figures, in order. No M is best when it is highest or lowest."""
    found = []
    for place in dict.fromkeys(places):
        words = (place.benchmark, place.category.partition(": ")[2], LABELS.get(place.figure, place.figure))
        bold, signed = place.figure not in ("0->1", "1->0"), place.figure == "delta"
        found.append(Column(place, " ".join(filter(None, words)), bold=bold, signed=signed))
    return found


def metrics_of(task: Task) -> tuple[Metric, ...]:
    """The figures of a task's tables: its published ones, and accuracy where it has none.

    Of agents those that are shares; `python -m reproduce.smartsnap` has all.
    """
    known = [metric for metric in task.metrics if metric.needs is None]
    return tuple(m for m in known if m.name in AGENTS or not isinstance(task, AgentTask)) or (ACCURACY,)


def figures_by_size(
    samples: Sequence[StoredSample],
    task: Task,
    problems: Mapping[str, Problem],
    strategies: Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    headline: str = HEADLINE,
    columns: Columns | None = None,
    order: Sequence[str] | None = None,
    benchmark: str = "",
) -> dict[tuple[int, str], MeasuredRun]:
    """Return the figures of a sample set by N and strategy. Sizes beyond the number of samples are left out.

    A single sample is the same for all strategies: for N = 1 there is ``first`` alone, and for larger N what
    ``strategies`` names. A strategy that needs scores is left out where there are none; a figure of which no
    choice has a component is, too.

    Args:
        samples: The same number of samples for every problem.
        task: Says what is measured.
        problems: The problems by id, with or without images; discrete answers need none.
        strategies: Names of strategies.
        sizes: Numbers of candidates.
        headline: The scores that choices are made by.
        columns: Which problems, in the order of the rows, belong to which categories. One with a single value
            that all problems have is left out.
        order: The ids in the order of the rows; by default that of the samples.
        benchmark: Of the figures' places.

    Raises:
        DataError: Problems have different numbers of samples, or a box has no target.
    """
    boxes = target_boxes(task, problems.values()) if problems else None
    table = SampleTable(samples, order, boxes, headline)
    count, total = table.correct.shape
    wanted = [n for n in dict.fromkeys(sizes) if n <= total]
    chosen = choices(table, task, problems, [STRATEGIES["first"], *map(find_strategy, strategies)], wanted)
    masks = {ALL: np.ones(count, dtype=bool)}
    for column, values in (columns or {}).items():
        if len(values) > 1 or not all(mask.all() for mask in values.values()):
            masks |= {f"{column}: {value}": mask for value, mask in values.items()}
    found: dict[tuple[int, str], MeasuredRun] = {}
    for n in wanted:
        for name in ["first"] if n == 1 else strategies:
            components = chosen.get((find_strategy(name).figure, n), {})
            parts: dict[Place, tuple[Floats, Floats]] = {}
            for metric in metrics_of(task):
                part, over = components.get(metric.part), components.get(metric.over or metric.part)
                if part is None or over is None:
                    continue
                below = over.value if metric.over else over.present
                parts |= {
                    Place(benchmark, category, metric.name): (part.value * mask, below * mask)
                    for category, mask in masks.items()
                    if below.any()
                }
            if parts:
                found[n, name] = ratio_run(parts)
    return found


def figures_of_turns(
    samples: Sequence[StoredSample], order: Sequence[str], benchmark: str = ""
) -> MeasuredRun:
    """Return `TURN_FIGURES` of samples of two turns each."""
    table = SampleTable(samples, order)
    found = turn_statistics(np.nan_to_num(table.reward(CORRECT_1)), table.correct)  # a lost one is wrong
    return measure_run({Place(benchmark, ALL, name): found[f"turns.{name}"] for name in TURN_FIGURES})


def sizes_of(text: str) -> list[int]:
    """Return the numbers of samples that ``--sizes`` names.

    Raises:
        ConfigError: One is no whole number above 0.
    """
    counts = [int(size) if size.strip().isdecimal() else 0 for size in text.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--sizes {text}: whole numbers above 0, with commas between them")
    return counts
