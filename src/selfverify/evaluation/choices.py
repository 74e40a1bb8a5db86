"""What a strategy's choice among N of G samples has of each component, on average over the size-N subsets.

The choice is a mixture of samples, whose components are stored, or, where votes over boxes make a box of
their own, of boxes that nobody wrote, whose components the task is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfverify.core.problem import Problem
from selfverify.evaluation.metrics import HEADLINE
from selfverify.evaluation.sample_table import SampleTable
from selfverify.evaluation.store import StoredSample
from selfverify.selection.rules import Floats, box_iou
from selfverify.selection.strategies import STRATEGIES
from selfverify.selection.subsets import blocks, mixtures
from selfverify.tasks.base import Task

CORRECT = "correct"
"""The component that every answer has."""


@dataclass(slots=True)
class Expected:
    """One component of the choices, per problem ``[P]``.

    Args:
        value: The expectation of the component, counting 0 where the choice lacks it.
        present: The probability that the choice has the component.
    """

    value: Floats
    present: Floats


Chosen = dict[tuple[str, int], dict[str, Expected]]
"""Expected components by the strategy's `Strategy.figure` and N."""


def choices(
    samples: Sequence[StoredSample], task: Task, problems: Mapping[str, Problem], seed: int = 0
) -> Chosen:
    """Expected components of what each strategy chooses, for N = 1..G.

    Strategies that need scores are left out where there are none. Components are `CORRECT`, each sample's
    rewards, and what `Task.answer_parts` gives. The oracle chooses a right answer, whatever is
    measured of it.

    Args:
        samples: G of every problem.
        task: Measures boxes that votes made (`Task.answer_parts`).
        problems: The problems by id; their images are not needed.
        seed: Draws the subsets, where there are too many (`selfverify.selection.subsets.subsets`).
    """
    table = SampleTable.from_samples(samples)
    count, total = table.correct.shape
    candidates = table.candidates(HEADLINE)
    if candidates.boxes is None and task.kind == "continuous":
        candidates = replace(candidates, boxes=np.full((count, total, 4), np.nan))  # not one could be read
    scored = not np.isnan(candidates.score).all()
    strategies = [s for s in STRATEGIES.values() if scored or s.needs != "score"]
    chosen: Chosen = {}

    def add(key: tuple[str, int], name: str, rows: slice | int, share: Floats, values: Floats) -> None:
        """The component's ``values`` ``[..., M]`` of what is chosen with the probabilities ``share``."""
        known = ~np.isnan(values)
        found = chosen.setdefault(key, {}).setdefault(name, Expected(np.zeros(count), np.zeros(count)))
        found.value[rows] = (share * np.where(known, values, 0.0)).sum(-1)
        found.present[rows] = (share * known).sum(-1)

    stored = table.rewards | {CORRECT: table.correct}
    for block in blocks(count):
        part = candidates.rows(block)
        found = {
            (strategy.figure, n): mixture
            for n in range(1, total + 1)
            for strategy, mixture in zip(strategies, mixtures(strategies, part, n, seed=seed), strict=True)
        }
        own = {name: values[block].copy() for name, values in stored.items()}
        if part.boxes is not None:
            for place, row in enumerate(range(count)[block]):
                problem = problems[table.problems[row]]
                made = {key: m.likely(place) for key, m in found.items() if m.boxes is not None}
                groups = [part.boxes[place], *(boxes for _, boxes in made.values())]
                measured, *voted = _measure(task, problem, groups)
                for name, values in measured.items():
                    own.setdefault(name, np.full(part.keys.shape, np.nan))[place] = values
                for (key, (share, boxes)), parts in zip(made.items(), voted, strict=True):
                    right = (box_iou(boxes, problem.target) > 0.5).astype(np.float64)
                    for name, values in (parts | {CORRECT: right}).items():
                        add(key, name, row, share, values)
        for key, mixture in found.items():
            if mixture.boxes is None:
                for name, values in own.items():
                    add(key, name, block, mixture.probability, values)
    return chosen


def _measure(task: Task, problem: Problem, groups: Sequence[Floats]) -> list[dict[str, Floats]]:
    """The task's components of each group of boxes ``[M, 4]``.

    One call measures all boxes of a problem, since its mask may have to be drawn for it.
    """
    found = task.answer_parts(problem, np.concatenate(groups))
    ends = np.cumsum([len(group) for group in groups])[:-1]
    split = {name: np.split(values, ends) for name, values in found.items()}
    return [{name: parts[i] for name, parts in split.items()} for i in range(len(groups))]
