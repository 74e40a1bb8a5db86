"""Every generator with every verifier, from stored samples: scores, and ADPO's Tables 5 and 11 to 13."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reproduce.by_size import SIZES, columns_for, figures_by_size
from reproduce.statistics import MeasuredRun, pooled
from reproduce.tables import Column, figure_table
from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import STRICT, open_journal, read_journal
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.breakdown import MOST_VALUES, Columns
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import auc_statistic, average_precision_statistic, mean_statistic
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier

Pair = tuple[str, str]
"""The model that wrote the answers, and the scores that the choice is made by: ``majority``, ``none`` for a
single sample, or a verifier's."""
JUDGING = (
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
    strategy: str = "best",
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
        strategy: The strategy that uses the scores; the paper takes the best.
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
        for verifier, chooser in [("majority", "majority"), *((name, strategy) for name in verifiers)]:
            by_row = figures_by_size(
                rows, task, problems or {}, [chooser],
                sizes=sizes if verifier == "majority" else [n for n in sizes if n > 1],
                headline=verifier, columns=categories, order=order,
            )  # fmt: skip
            for (n, _), run in by_row.items():
                found[n][generator, "none" if n == 1 else verifier] = run
    return {n: rows for n, rows in found.items() if rows}


def judgings(
    samples: Mapping[str, Sequence[StoredSample]], verifiers: Sequence[str]
) -> dict[Pair, MeasuredRun]:
    """Return how well each verifier judges the answers of each generator, whatever is chosen by it.

    ``auc`` and ``ap`` are over all samples; ``scored`` is the share of the samples that have a score.
    """
    found = {}
    for generator, rows in samples.items():
        table = SampleTable.from_samples(rows, target_boxes=None, headline="soft")
        for verifier in verifiers:
            score = table.scores.get(verifier, np.full(table.correct.shape, np.nan))
            statistics = {
                "auc": auc_statistic(score, table.correct),
                "ap": average_precision_statistic(score, table.correct),
                "scored": mean_statistic((~np.isnan(score)).mean(-1)),
            }
            found[generator, verifier] = MeasuredRun.of(statistics, len(table.problems))
    return found


def as_markdown(
    cells: Mapping[int, Mapping[Pair, MeasuredRun]], judged: Mapping[Pair, MeasuredRun] | None = None
) -> str:
    """Return the paper's layout: a table per number of samples, a row per pair, a column per figure.

    Categories of more than `MOST_VALUES` values are left out. The last table says how well verifiers judge.
    """
    places = dict.fromkeys(place for rows in cells.values() for run in rows.values() for place in run.values)
    values = Counter(name.partition(": ")[0] for name in {place.category for place in places})
    columns = columns_for(p for p in places if values[p.category.partition(": ")[0]] <= MOST_VALUES)
    head, parts = ["generator", "verifier"], []
    for n, rows in cells.items():
        parts += [
            f"## N = {n}",
            figure_table(head, {pair: pooled({0: run}) for pair, run in rows.items()}, columns),
        ]
    if judged:
        shown = {pair: pooled({0: run}) for pair, run in judged.items()}
        parts += ["## Right and wrong answers told apart", figure_table(head, shown, JUDGING)]
    return "\n\n".join(parts) + "\n"


def as_json(
    cells: Mapping[int, Mapping[Pair, MeasuredRun]], judged: Mapping[Pair, MeasuredRun]
) -> dict[str, list[dict[str, Any]]]:
    """Return the same as plain JSON: a line for each figure, and for each pair how well it judges."""
    lines = [
        {"n": n, "generator": pair[0], "verifier": pair[1], **place._asdict(), **figure}
        for n, rows in cells.items()
        for pair, run in rows.items()
        for place, figure in pooled({0: run}).items()
    ]
    told = [{"generator": pair[0], "verifier": pair[1], **pooled({0: run})} for pair, run in judged.items()]
    return {"cells": lines, "judging": told}


FEW = 8
"""Problems whose ratings a server makes before they are stored."""


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """A line of a journal of scores: those of a problem's samples, None for answers without one."""

    __pydantic_config__: ClassVar = STRICT

    index: int
    scores: list[float | None]


def stored_scores(
    file: Path,
    settings: Mapping[str, Any],
    make: Callable[[], Verifier],
    task: Task,
    problems: Sequence[Problem],
    samples: Sequence[StoredSample],
    batch: int,
) -> list[float | None]:
    """Return a judge's scores in the order of the samples, those that a journal holds and new ones.

    Args:
        file: The journal. One of other settings is made anew.
        settings: What decides the scores.
        make: Makes the judge; called only if scores are missing.
        task: Reads the answers.
        problems: The problems.
        samples: The same number of answers to each.
        batch: Problems that are judged before they are stored.

    Raises:
        DataError: The journal is corrupt.
        ServerError: A judge's server failed; what was finished is stored.
    """
    if file.exists() and read_journal(file, JudgedProblem)[0] != settings:
        file.unlink()
    journal, known = open_journal(file, JudgedProblem, settings)
    left = [index for index in range(len(problems)) if index not in known]
    rows = _rows(problems, samples)
    judge = make() if left else None
    for first in range(0, len(left), batch):
        assert judge is not None
        part = left[first : first + batch]
        asked = [place for index in part for place in rows[problems[index].id]]
        own = [problems[index] for index in part]
        scores = iter(judge_samples(judge, task, own, [samples[place] for place in asked], batch))
        made = [JudgedProblem(index, [next(scores) for _ in rows[problems[index].id]]) for index in part]
        journal.append(*map(asdict, made))
        known |= {row.index: row for row in made}
    result: list[float | None] = [None] * len(samples)
    for index, problem in enumerate(problems):
        for place, score in zip(rows[problem.id], known[index].scores, strict=True):
            result[place] = score
    return result


def _rows(problems: Sequence[Problem], samples: Sequence[StoredSample]) -> dict[str, list[int]]:
    """Each problem's places among the samples."""
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
    return rows


def judge_samples(
    judge: Verifier, task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample], batch: int = 64
) -> list[float | None]:
    """Return a judge's scores in the order of the samples; None for answers that could not be read."""
    rows = _rows(problems, samples)
    found: list[float | None] = [None] * len(samples)
    for first in range(0, len(problems), batch):
        part = problems[first : first + batch]
        groups = [Group(p, [_trajectory(samples[i], task) for i in rows[p.id]]) for p in part]
        for problem, scores in zip(part, judge.score(groups), strict=True):
            for place, score in zip(rows[problem.id], scores, strict=True):
                found[place] = score
    return found


def _trajectory(sample: StoredSample, task: Task) -> Trajectory:
    """Make the trajectory that a judge may see: a sample's text up to its score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Verdict(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)
