"""The figures of every generator with every verifier, counted from stored samples, and their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reproduce.by_size import SIZES, columns_for, figures_by_size
from reproduce.statistics import MeasuredRun, difference, measure_run, pooled
from reproduce.tables import Column, seed_tables
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import MOST_VALUES, Columns
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import mean_statistic, ranking_statistics
from selfverify.tasks.base import Task

WITHIN, TOLD = "within_problem_auc", "Right and wrong answers told apart"
Pair = tuple[str, str]
"""The model that wrote the answers, and the scores that the choice is made by: ``majority``, ``none`` for a
single sample, or a verifier's."""
JUDGING = (
    Column(WITHIN, "AUC within problems"),
    Column("auc", "AUC"),
    Column("ap", "AP"),
    Column("scored", "answers with a score", better=False),
)


def matrix(
    samples: Mapping[str, Sequence[StoredSample]],
    verifiers: Sequence[str],
    task: Task,
    problems: Mapping[str, Problem] | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    strategies: Sequence[str] = ("best",),
    categories: Columns | None = None,
) -> dict[int, dict[Pair, MeasuredRun]]:
    """Return all pairs' figures by N. Sizes beyond a generator's number of samples are left out.

    Args:
        samples: The samples by generator, all of the same problems, with a score from every verifier.
        verifiers: Names of scores in `StoredSample.scores`. A generator without any score of a verifier has
            no row.
        task: Its figures are given, or accuracy where it has none.
        problems: The problems by id, which tasks whose answers are boxes need.
        sizes: Numbers of candidates per problem.
        strategies: The strategies that use the scores; the paper takes the best. Rows of all but the first
            name theirs behind the verifier.
        categories: Which problems, in the order of the first generator's samples, belong to each value of
            each column; there are figures of each of them, and of all problems.

    Raises:
        DataError: Generators answered different problems.
    """
    order: list[str] | None = None
    found: dict[int, dict[Pair, MeasuredRun]] = {n: {} for n in sorted(sizes)}
    for generator, rows in samples.items():
        order = order or list(dict.fromkeys(sample.problem for sample in rows))
        if other := {sample.problem for sample in rows} ^ set(order):
            raise DataError(
                f"generator {generator} answered other problems than the first: {sorted(other)[:3]}"
            )
        for verifier, choosers in [("majority", ["majority"]), *((name, strategies) for name in verifiers)]:
            by_row = figures_by_size(
                rows, task, problems or {}, choosers,
                sizes=sizes if verifier == "majority" else [n for n in sizes if n > 1],
                headline=verifier, columns=categories, order=order,
            )  # fmt: skip
            for (n, chooser), run in by_row.items():
                label = verifier if chooser == choosers[0] else f"{verifier}, {chooser}"
                found[n][generator, "none" if n == 1 else label] = run
    return {n: rows for n, rows in found.items() if rows}


def judgings(
    samples: Mapping[str, Sequence[StoredSample]], verifiers: Sequence[str]
) -> dict[Pair, MeasuredRun]:
    """Return how well each verifier judges the answers of each generator.

    ``auc`` and ``ap`` are over all samples; ``scored`` is the share of the samples that have a score.
    """
    found = {}
    for generator, rows in samples.items():
        table = SampleTable(rows, target_boxes=None, headline="soft")
        for verifier in verifiers:
            score = table.scores.get(verifier, np.full(table.correct.shape, np.nan))
            statistics = ranking_statistics(score, table.correct)
            statistics["scored"] = mean_statistic((~np.isnan(score)).mean(-1))
            found[generator, verifier] = measure_run(statistics)
    return found


class Found(NamedTuple):
    """Figures of one training seed's models: by N and pair, and how well verifiers judge by pair."""

    cells: Mapping[int, Mapping[Pair, MeasuredRun]]
    judged: Mapping[Pair, MeasuredRun]


def as_markdown(found: Mapping[int, Found], against: Pair | None = None) -> str:
    """Return the paper's layout: a table per number of samples, a row per pair, a column per figure.

    Categories of more than `MOST_VALUES` values are left out. The last table says how well verifiers judge.

    Args:
        found: The figures by training seed.
        against: The pair whose differences from all others are shown, too, in each table that has it.
    """
    tables = _tables(found)
    places = dict.fromkeys(
        place for one in found.values() for of in one.cells.values() for run in of.values() for place in run
    )
    values = Counter(name.partition(": ")[0] for name in {place.category for place in places})
    few = columns_for(p for p in places if values[p.category.partition(": ")[0]] <= MOST_VALUES)
    ahead = {
        title: {pair: difference(of, by_pair[against]) for pair, of in by_pair.items() if pair != against}
        for title, by_pair in tables.items()
        if against in by_pair
    }
    parts = seed_tables(
        ["generator", "verifier"], tables, lambda title: JUDGING if title == TOLD else few, ahead,
        " with ".join(against or ()),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _tables(found: Mapping[int, Found]) -> dict[str, dict[Pair, dict[int, MeasuredRun]]]:
    """Turn what each seed has into what each table has: pairs, and their figures by seed."""
    tables: dict[str, dict[Pair, dict[int, MeasuredRun]]] = {}
    for seed, one in found.items():
        for title, rows in [*((f"N = {n}", rows) for n, rows in one.cells.items()), (TOLD, one.judged)]:
            for pair, run in rows.items():
                tables.setdefault(title, {}).setdefault(pair, {})[seed] = run
    return tables


def as_json(found: Mapping[int, Found]) -> dict[str, list[dict[str, Any]]]:
    """Return the same as plain JSON: a line for each figure, and for each pair how well it judges."""
    tables, lines = _tables(found), []
    told = tables.pop(TOLD, {})
    for title, by_pair in tables.items():
        for pair, of in by_pair.items():
            about = {"n": int(title[4:]), "generator": pair[0], "verifier": pair[1]}
            lines += [about | place._asdict() | figure for place, figure in pooled(of).items()]
    judging = [{"generator": pair[0], "verifier": pair[1], **pooled(of)} for pair, of in told.items()]
    return {"cells": lines, "judging": judging}
