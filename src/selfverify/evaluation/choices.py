"""What a strategy's choice among N of G samples has of each component, on average over the size-N subsets.

A choice is a probability for each sample, or, where votes over boxes make a box of their own, boxes that
nobody wrote, each with a probability; their components are then asked of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.evaluation.metrics import HEADLINE, best_share, oracle_share, subsets
from selfverify.evaluation.store import Sample
from selfverify.evaluation.table import SampleTable
from selfverify.rollouts.types import Problem
from selfverify.selection.candidates import Candidates
from selfverify.selection.rules import box_iou, cluster_boxes, cluster_votes, winners
from selfverify.selection.strategies import DEFAULTS, Strategy, find_strategy
from selfverify.tasks import Task

Floats = NDArray[np.float64]

RULES = {
    "pass@1": "first",
    "majority": "majority",
    "weighted": "weighted",
    "best_of_majority": "best-of-majority",
    "best": "best",
    "oracle": "oracle",
}
"""Strategies by their name in a summary. ``oracle`` chooses a right answer, whatever is measured of it."""
CORRECT = "correct"
"""The component that every answer has."""
_BLOCK = 64
"""Problems whose subsets are in memory at once."""


@dataclass(slots=True)
class Expected:
    """Of one component, per problem ``[P]``.

    Args:
        value: Its expectation, counting 0 where the choice lacks it.
        present: The probability that the choice has it.
    """

    value: Floats
    present: Floats


Chosen = dict[tuple[str, int], dict[str, Expected]]
"""Expected components by rule and N."""


def choices(samples: Sequence[Sample], task: Task, problems: Mapping[str, Problem], seed: int = 0) -> Chosen:
    """Expected components of what each rule chooses, for N = 1..G; without the rules that lack scores.

    Components are `CORRECT`, each sample's rewards, and what the task's ``answer_parts`` gives.

    Args:
        samples: G of every problem.
        task: See `Task.judge`.
        problems: By id; their images are not needed.
        seed: Of the subsets, where there are too many (`selfverify.evaluation.metrics.subsets`).
    """
    table = SampleTable.from_samples(samples)
    rows = [problems[name] for name in table.problems]
    count, total = table.correct.shape
    boxes = table.boxes
    if boxes is None and task.kind == "continuous":
        boxes = np.full((count, total, 4), np.nan)  # not one could be read
    parts = _parts(table, samples)
    chosen: Chosen = {}
    rules = _rules(table)
    for begin in range(0, count, _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, count))
        own = {name: values[block] for name, values in parts.items()}
        made: dict[tuple[str, int], tuple[Floats, Floats]] = {}
        """Boxes that votes made ``[B, M, 4]``, and their probabilities ``[B, M]``."""
        shares: dict[tuple[str, int], Floats] = {}
        for n in range(1, total + 1):
            columns = np.stack(subsets(total, n, seed))
            taken = _take(table, boxes, block, columns)
            for rule, strategy in rules.items():
                if boxes is not None and strategy.votes is not None:
                    made[rule, n] = _consensus(taken, strategy)
                else:
                    shares[rule, n] = _share(strategy, table, block, taken, columns)
        if boxes is not None:
            own |= _measure(task, rows, block, boxes, made, chosen, count)
        for key, share in shares.items():
            for name, values in own.items():
                known = ~np.isnan(values)
                found = _slot(chosen, key, name, count)
                found.value[block] = (share * np.where(known, values, 0.0)).sum(-1)
                found.present[block] = (share * known).sum(-1)
    return chosen


def _rules(table: SampleTable) -> dict[str, Strategy]:
    scored = not np.isnan(table.scores[HEADLINE]).all()
    found = {rule: find_strategy(name) for rule, name in RULES.items()}
    return {rule: strategy for rule, strategy in found.items() if scored or strategy.needs != "score"}


def _parts(table: SampleTable, samples: Sequence[Sample]) -> dict[str, Floats]:
    """Components ``[P, G]`` as they are stored; NaN where a sample lacks one."""
    place = {problem: row for row, problem in enumerate(table.problems)}
    names = dict.fromkeys(name for sample in samples for name in sample.rewards)
    parts = {name: np.full(table.correct.shape, np.nan) for name in names}
    seen = [0] * len(place)
    for sample in sorted(samples, key=lambda sample: sample.sample):
        row = place[sample.problem]
        for name, value in sample.rewards.items():
            parts[name][row, seen[row]] = value
        seen[row] += 1
    return parts | {CORRECT: table.correct}


def _take(
    table: SampleTable, boxes: Floats | None, block: NDArray[np.int64], columns: NDArray[np.int64]
) -> Candidates:
    """The S subsets ``columns`` ``[S, n]`` of the block's candidates, ``[B, S, n]``, each clustered anew."""
    own = None if boxes is None else boxes[block][:, columns]
    keys = table.keys[block][:, columns] if own is None else cluster_boxes(own, DEFAULTS.iou)[0]
    return Candidates(keys, table.scores[HEADLINE][block][:, columns], own, table.correct[block][:, columns])


def _share(
    strategy: Strategy,
    table: SampleTable,
    block: NDArray[np.int64],
    taken: Candidates,
    columns: NDArray[np.int64],
) -> Floats:
    """How likely each of the G samples is chosen, ``[B, G]``; exact where there is a closed form."""
    correct, n = table.correct[block], columns.shape[1]
    if strategy.name == "first":
        return np.full(correct.shape, 1 / correct.shape[1])
    if strategy.name == "best":
        return best_share(table.scores[HEADLINE][block], n)
    if strategy.name == "oracle":
        return oracle_share(correct, n)
    weights = strategy.weigh(taken, DEFAULTS)
    share = np.zeros(correct.shape)
    for number, own in enumerate(columns):
        share[:, own] += weights[:, number]
    return share / len(columns)


def _consensus(taken: Candidates, strategy: Strategy) -> tuple[Floats, Floats]:
    """The boxes ``[B, S*n, 4]`` that the winning clusters stand for, and how likely each is chosen.

    A subset without a readable box has one NaN box.
    """
    assert strategy.votes is not None and taken.boxes is not None
    sums, made = cluster_votes(taken.keys, taken.boxes, strategy.votes(taken, DEFAULTS))
    weights = winners(sums)
    weights[..., 0] += ~(sums > 0).any(-1)
    return made.reshape(len(sums), -1, 4), weights.reshape(len(sums), -1) / sums.shape[1]


def _measure(
    task: Task,
    rows: Sequence[Problem],
    block: NDArray[np.int64],
    boxes: Floats,
    made: Mapping[tuple[str, int], tuple[Floats, Floats]],
    chosen: Chosen,
    count: int,
) -> dict[str, Floats]:
    """Components ``[B, G]`` of the samples' boxes; those of the boxes that votes made go into ``chosen``.

    All boxes of a problem are measured in one call, since its mask may have to be drawn for it.
    """
    own: dict[str, Floats] = {}
    for place, row in enumerate(block):
        likely = {key: (b[place][w[place] > 0], w[place][w[place] > 0]) for key, (b, w) in made.items()}
        stacked = np.concatenate([boxes[row], *(b for b, _ in likely.values())])
        parts = _answer_parts(task)(rows[row], stacked)
        for name, values in parts.items():
            own.setdefault(name, np.full((len(block), boxes.shape[1]), np.nan))
            own[name][place] = values[: boxes.shape[1]]
        start = boxes.shape[1]
        voted = parts | {CORRECT: (box_iou(stacked, rows[row].target) > 0.5).astype(np.float64)}
        for key, (_, weights) in likely.items():
            for name, values in voted.items():
                found = _slot(chosen, key, name, count)
                found.value[row] = (weights * values[start : start + len(weights)]).sum()
                found.present[row] = weights.sum()
            start += len(weights)
    return own


def _answer_parts(task: Task) -> Callable[[Problem, Floats], dict[str, Floats]]:
    found: Any = getattr(task, "answer_parts", None)
    return found if found is not None else lambda problem, answers: {}


def _slot(chosen: Chosen, key: tuple[str, int], name: str, count: int) -> Expected:
    parts = chosen.setdefault(key, {})
    if name not in parts:
        parts[name] = Expected(np.zeros(count), np.zeros(count))
    return parts[name]
