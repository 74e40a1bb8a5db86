"""A sample set's figures for several numbers of samples: by strategy, N, category and figure, with intervals.

Every figure is a sum over problems divided by another one (`selfverify.tasks.base.Metric`), so that the draws
of all figures are two matrix products. This is what ADPO's Tables 2 to 5 and 11 to 13 are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from selfverify.agents.task import AgentTask
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import ACCURACY, Columns, choices
from selfverify.evaluation.evaluate import target_boxes
from selfverify.evaluation.metrics import HEADLINE, SampleTable
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.evaluation.statistics import ratio_draws, turn_shares
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


class FigurePlace(NamedTuple):
    """Where a figure stands.

    Args:
        chooser: The strategy that chooses; ``first`` for a single sample.
        n: The number of candidates per problem.
        category: ``COLUMN: VALUE``, or `ALL`.
        figure: The task's figure, or ``accuracy``.
    """

    chooser: str
    n: int
    category: str
    figure: str


@dataclass(slots=True)
class SizedFigures:
    """Figures as sums over problems.

    Args:
        problems: The P problem ids.
        above: What is summed ``[P]``; the problems of other categories count 0.
        below: What that sum is divided by ``[P]``.
        counts: Problems by category.
    """

    problems: list[str]
    above: dict[FigurePlace, Floats] = field(default_factory=dict)
    below: dict[FigurePlace, Floats] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def drawn(self, seed: int = 0) -> dict[FigurePlace, tuple[float, Floats]]:
        """Each figure's value, and its values on draws of the problems ``[draws]``.

        Sets about the same problems have the same draws where the ``seed`` is the same.
        """
        if not self.above:
            return {}
        above, below = np.stack([*self.above.values()], -1), np.stack([*self.below.values()], -1)
        values, drawn = ratio_draws(above, below, seed)
        return {
            place: (float(value), drawn[:, k])
            for k, (place, value) in enumerate(zip(self.above, values, strict=True))
        }


def metrics_of(task: Task) -> tuple[Metric, ...]:
    """The figures of a task's tables: its published ones, and accuracy where it has none.

    Of agents those that are shares; `python -m reproduce.smartsnap` has all.
    """
    found = tuple(metric for metric in task.metrics if metric.needs is None)
    if isinstance(task, AgentTask):
        found = tuple(metric for metric in found if metric.name in AGENTS)
    return found or (ACCURACY,)


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
) -> SizedFigures:
    """Return the figures of a sample set. Sizes beyond the number of samples are left out.

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

    Raises:
        DataError: Problems have different numbers of samples, or a box has no target.
    """
    boxes = target_boxes(task, problems.values()) if problems else None
    table = SampleTable.from_samples(samples, order, boxes, headline)
    count, total = table.correct.shape
    wanted = [n for n in dict.fromkeys(sizes) if n <= total]
    chosen = choices(table, task, problems, [STRATEGIES["first"], *map(find_strategy, strategies)], wanted)
    parts = {ALL: np.ones(count, dtype=bool)}
    for column, values in (columns or {}).items():
        if len(values) > 1 or not all(mask.all() for mask in values.values()):
            parts |= {f"{column}: {value}": mask for value, mask in values.items()}
    found = SizedFigures(table.problems, counts={name: int(mask.sum()) for name, mask in parts.items()})
    for n in wanted:
        for name in ["first"] if n == 1 else strategies:
            components = chosen.found.get((find_strategy(name).figure, n), {})
            for metric in metrics_of(task):
                part, over = components.get(metric.part), components.get(metric.over or metric.part)
                if part is None or over is None:
                    continue
                below = over.value if metric.over else over.present
                if not below.any():
                    continue
                for category, mask in parts.items():
                    place = FigurePlace(name, n, category, metric.name)
                    found.above[place], found.below[place] = part.value * mask, below * mask
    return found


TURNS = "turns"
"""The chooser of figures about two answers each, which nobody chooses among."""
TURN_FIGURES = ("acc@t1", "acc@t2", "delta", "0->1", "1->0")
"""AdaPO's figures (its Table 1 and Fig. 4 and 5), by `selfverify.evaluation.statistics.transitions`."""


def figures_of_turns(samples: Sequence[StoredSample], order: Sequence[str] | None = None) -> SizedFigures:
    """Return `TURN_FIGURES` of samples of two turns each; nothing where they have one turn."""
    table = SampleTable.from_samples(samples, order)
    found = SizedFigures(table.problems, counts={ALL: len(table.problems)})
    first = table.reward(CORRECT_1)
    if not np.isnan(first).any():
        shares = turn_shares(first > 0.5, table.correct > 0.5)
        for name in TURN_FIGURES:
            place = FigurePlace(TURNS, table.correct.shape[1], ALL, name)
            found.above[place], found.below[place] = shares[name], np.ones(len(table.problems))
    return found


def sizes_of(text: str) -> list[int]:
    """Return the numbers of samples that ``--sizes`` names.

    Raises:
        ConfigError: One is no whole number above 0.
    """
    counts = [int(size) if size.strip().isdecimal() else 0 for size in text.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--sizes {text}: whole numbers above 0, with commas between them")
    return counts
