"""Every generator with every verifier: ADPO's Tables 5 and 11 to 13, from stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfverify.errors import DataError
from selfverify.evaluation.bootstrap import bootstrap_interval
from selfverify.evaluation.metrics import Boxes, strategy_of_subsets
from selfverify.evaluation.store import Sample
from selfverify.evaluation.table import SampleTable

SIZES = (1, 4, 8, 12)
"""The tables' numbers of samples."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of the matrix.

    Args:
        generator: Who wrote the answers.
        verifier: Whose scores chose, ``majority``, or ``none`` for a single sample.
        n: Candidates per problem.
        category: Part of the problems, or ``all``.
        accuracy: Mean over its problems, and over the size-n subsets of the samples there are.
        interval: 95 % bootstrap interval over problems.
        problems: How many.
    """

    generator: str
    verifier: str
    n: int
    category: str
    accuracy: float
    interval: tuple[float, float] | None
    problems: int


def matrix(
    samples: Mapping[str, Sequence[Sample]],
    verifiers: Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    category: Callable[[str], str] | None = None,
    target_boxes: Boxes | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> list[Cell]:
    """The whole table. Sizes beyond the samples a generator has are left out.

    Args:
        samples: By generator, of the same problems, each with a score from every verifier.
        verifiers: Names of scores in `Sample.scores`. A generator without any score of a verifier has no row.
        sizes: Candidates per problem.
        strategy: What uses the scores; the paper takes the best.
        category: Of a problem's id; rows per category come besides those of all problems.
        target_boxes: Of continuous tasks.
        draws: Of the bootstrap.
        seed: Of the bootstrap and of the subsets.

    Raises:
        DataError: Generators answered different problems.
    """
    problems: list[str] | None = None
    cells: list[Cell] = []
    for generator, rows in samples.items():
        table = SampleTable.from_samples(rows, problems and _known(problems, rows, generator))
        problems = table.problems
        parts = {ALL: np.ones(len(problems), dtype=bool)}
        if category is not None:
            names = np.array([category(problem) for problem in problems])
            parts |= {name: names == name for name in sorted(set(names.tolist()))}
        for n in sizes:
            if n > table.correct.shape[1]:
                continue
            rules = [("none", "first", "soft")]
            if n > 1:
                rules = [("majority", "majority", "soft"), *((v, strategy, v) for v in verifiers)]
            for verifier, rule, score in rules:
                if score not in table.scores:
                    continue
                values = strategy_of_subsets(table, rule, n, score, target_boxes, seed)
                if values is None:
                    continue
                for part, mask in parts.items():
                    own = values[mask]
                    interval = bootstrap_interval(own, n=draws, seed=seed)
                    cells.append(
                        Cell(generator, verifier, n, part, float(own.mean()), interval, int(mask.sum()))
                    )
    return cells


def _known(problems: list[str], rows: Sequence[Sample], generator: str) -> list[str]:
    other = {sample.problem for sample in rows} ^ set(problems)
    if other:
        raise DataError(f"generator {generator} answered other problems than the first: {sorted(other)[:3]}")
    return problems


def as_markdown(cells: Sequence[Cell]) -> str:
    """The paper's layout: a block per number of samples, a row per pair, a column per category."""
    categories = list(dict.fromkeys(cell.category for cell in cells))
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
