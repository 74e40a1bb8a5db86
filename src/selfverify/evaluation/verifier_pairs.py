"""Every generator with every verifier: ADPO's Tables 5 and 11 to 13, from stored samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfverify.core.errors import DataError
from selfverify.evaluation.breakdown import MOST_VALUES, Columns
from selfverify.evaluation.metrics import HEADLINE, Boxes, SampleTable, accuracy
from selfverify.evaluation.statistics import bootstrap_interval, mean_statistic
from selfverify.evaluation.store import StoredSample

SIZES = (1, 4, 8, 12)
"""The numbers of samples in the paper's tables."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of the matrix.

    Args:
        generator: The model that wrote the answers.
        verifier: The scores that the choice is made by; ``majority``, or ``none`` for a single sample.
        n: The number of candidates per problem.
        category: The category of problems, ``COLUMN: VALUE``, or ``all``.
        accuracy: The mean over the category's problems, and over the size-n subsets of the samples.
        interval: A 95 % bootstrap interval over problems.
        problems: The number of problems.
    """

    generator: str
    verifier: str
    n: int
    category: str
    accuracy: float
    interval: list[float] | None
    problems: int


def matrix(
    samples: Mapping[str, Sequence[StoredSample]],
    verifiers: Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    categories: Columns | None = None,
    target_boxes: Boxes | None = None,
) -> list[Cell]:
    """Return all cells of the table. Sizes beyond a generator's number of samples are left out.

    Args:
        samples: The samples by generator, all of the same problems, with a score from every verifier.
        verifiers: Names of scores in `StoredSample.scores`. A generator without any score of a verifier has
            no row.
        sizes: Numbers of candidates per problem.
        strategy: The strategy that uses the scores; the paper takes the best.
        categories: Which problems, in the order of the first generator's samples, belong to each value of
            each column; there are cells for each of them, ``COLUMN: VALUE``, and of all problems.
        target_boxes: The true boxes by problem id, for tasks whose answers are boxes.

    Raises:
        DataError: Generators answered different problems.
    """
    problems: list[str] | None = None
    cells: list[Cell] = []
    for generator, rows in samples.items():
        order = problems and _known(problems, rows, generator)
        table = SampleTable.from_samples(rows, order, target_boxes)
        problems = table.problems
        parts = {ALL: np.ones(len(problems), dtype=bool)}
        for column, values in (categories or {}).items():
            parts |= {f"{column}: {value}": mask for value, mask in values.items() if len(values) > 1}
        for n in sizes:
            if n > table.correct.shape[1]:
                continue
            rows_of_n = [("none", "first", HEADLINE)]
            if n > 1:
                rows_of_n = [("majority", "majority", HEADLINE), *((v, strategy, v) for v in verifiers)]
            for verifier, chooser, score in rows_of_n:
                found = accuracy(table, chooser, n, score)
                if found is None:
                    continue
                for part, mask in parts.items():
                    own = found[mask]
                    interval = bootstrap_interval(mean_statistic(own), len(own))
                    cells.append(
                        Cell(generator, verifier, n, part, float(own.mean()), interval, int(mask.sum()))
                    )
    return cells


def _known(problems: list[str], rows: Sequence[StoredSample], generator: str) -> list[str]:
    other = {sample.problem for sample in rows} ^ set(problems)
    if other:
        raise DataError(f"generator {generator} answered other problems than the first: {sorted(other)[:3]}")
    return problems


def as_markdown(cells: Sequence[Cell]) -> str:
    """Return the paper's layout: a block per number of samples, a row per pair, a column per category.

    Columns of more than `MOST_VALUES` values are left out.
    """
    every = list(dict.fromkeys(cell.category for cell in cells))
    values = Counter(name.partition(": ")[0] for name in every)
    categories = [name for name in every if values[name.partition(": ")[0]] <= MOST_VALUES]
    lines = [
        f"| N | generator | verifier | {' | '.join(categories)} |",
        "|" + " --- |" * (3 + len(categories)),
    ]
    by_row: dict[tuple[int, str, str], dict[str, str]] = {}
    for cell in sorted(cells, key=lambda cell: cell.n):
        shown = f"{100 * cell.accuracy:.1f}"
        if cell.interval:
            shown += f" ({100 * cell.interval[0]:.1f} to {100 * cell.interval[1]:.1f})"
        by_row.setdefault((cell.n, cell.generator, cell.verifier), {})[cell.category] = shown
    for (n, generator, verifier), row in by_row.items():
        lines.append(
            f"| {n} | {generator} | {verifier} | {' | '.join(row.get(c, '–') for c in categories)} |"
        )
    return "\n".join(lines) + "\n"
