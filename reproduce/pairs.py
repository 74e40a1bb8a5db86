"""Every generator with every verifier, from stored samples: scores, and ADPO's Tables 5 and 11 to 13."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reproduce.by_size import LABELS, SIZES, figures_by_size
from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import STRICT, open_journal, read_journal
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.breakdown import MOST_VALUES, Columns
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import (
    Statistic,
    auc_statistic,
    average_precision_statistic,
    bootstrap_interval,
    on_all,
    percentile_interval,
)
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of the matrix.

    Args:
        generator: The model that wrote the answers.
        verifier: The scores that the choice is made by; ``majority``, or ``none`` for a single sample.
        n: The number of candidates per problem.
        category: The category of problems, ``COLUMN: VALUE``, or ``all``.
        figure: ``accuracy``, or one of the task's own figures.
        value: Over the category's problems, on average over the size-n subsets of the samples.
        interval: A 95 % bootstrap interval over problems.
        problems: The number of problems.
    """

    generator: str
    verifier: str
    n: int
    category: str
    figure: str
    value: float
    interval: list[float] | None
    problems: int


@dataclass(frozen=True, slots=True)
class Judging:
    """How well a verifier tells a generator's right answers from its wrong ones.

    Args:
        generator: The model that wrote the answers.
        verifier: The scores.
        auc: The area under the ROC curve over all samples; None without both right and wrong ones.
        auc_interval: 95 %, over problems.
        ap: The average precision over all samples.
        ap_interval: 95 %, over problems.
        scored: The share of the samples that have a score.
    """

    generator: str
    verifier: str
    auc: float | None
    auc_interval: list[float] | None
    ap: float | None
    ap_interval: list[float] | None
    scored: float


def matrix(
    samples: Mapping[str, Sequence[StoredSample]],
    verifiers: Sequence[str],
    task: Task,
    problems: Mapping[str, Problem] | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    categories: Columns | None = None,
) -> list[Cell]:
    """Return all cells of the table. Sizes beyond a generator's number of samples are left out.

    Args:
        samples: The samples by generator, all of the same problems, with a score from every verifier.
        verifiers: Names of scores in `StoredSample.scores`. A generator without any score of a verifier has
            no row.
        task: Its figures are given, or accuracy where it has none.
        problems: The problems by id, which tasks whose answers are boxes need.
        sizes: Numbers of candidates per problem.
        strategy: The strategy that uses the scores; the paper takes the best.
        categories: Which problems, in the order of the first generator's samples, belong to each value of
            each column; there are cells for each of them, ``COLUMN: VALUE``, and of all problems.

    Raises:
        DataError: Generators answered different problems.
    """
    order: list[str] | None = None
    cells: list[Cell] = []
    for generator, rows in samples.items():
        order = order or list(dict.fromkeys(sample.problem for sample in rows))
        if other := {sample.problem for sample in rows} ^ set(order):
            raise DataError(
                f"generator {generator} answered other problems than the first: {sorted(other)[:3]}"
            )
        own: dict[int, list[Cell]] = {}
        for verifier, chooser in [("majority", "majority"), *((name, strategy) for name in verifiers)]:
            found = figures_by_size(
                rows, task, problems or {}, [chooser],
                sizes=sizes if verifier == "majority" else [n for n in sizes if n > 1],
                headline=verifier, columns=categories, order=order,
            )  # fmt: skip
            for place, (value, drawn) in found.drawn().items():
                if not np.isnan(value):
                    by = "none" if place.n == 1 else verifier
                    interval, count = percentile_interval(drawn), found.counts[place.category]
                    cell = Cell(generator, by, place.n, place.category, place.figure, value, interval, count)
                    own.setdefault(place.n, []).append(cell)
        cells += [cell for n in sorted(own) for cell in own[n]]
    return cells


def judgings(samples: Mapping[str, Sequence[StoredSample]], verifiers: Sequence[str]) -> list[Judging]:
    """Return how well each verifier judges the answers of each generator, whatever is chosen by it."""
    found = []
    for generator, rows in samples.items():
        table = SampleTable.from_samples(rows, target_boxes=None, headline="soft")
        count = len(table.problems)

        def measured(statistic: Statistic, count: int = count) -> tuple[float | None, list[float] | None]:
            value = on_all(statistic, count)
            return (None, None) if np.isnan(value) else (value, bootstrap_interval(statistic, count))

        for verifier in verifiers:
            score = table.scores.get(verifier, np.full(table.correct.shape, np.nan))
            auc = measured(auc_statistic(score, table.correct))
            ap = measured(average_precision_statistic(score, table.correct))
            found.append(Judging(generator, verifier, *auc, *ap, float((~np.isnan(score)).mean())))
    return found


def as_markdown(cells: Sequence[Cell], judged: Sequence[Judging] = ()) -> str:
    """Return the paper's layout: a block per number of samples, a row per pair, a column per figure.

    Categories of more than `MOST_VALUES` values are left out. A table below says how well verifiers judge.
    """
    every = list(dict.fromkeys(cell.category for cell in cells))
    values = Counter(name.partition(": ")[0] for name in every)
    categories = [name for name in every if values[name.partition(": ")[0]] <= MOST_VALUES]
    figures = list(dict.fromkeys(cell.figure for cell in cells))
    columns = [(category, figure) for category in categories for figure in figures]
    heads = [
        category if len(figures) == 1 else f"{category} {LABELS.get(figure, figure)}"
        for category, figure in columns
    ]
    lines = [f"| N | generator | verifier | {' | '.join(heads)} |", "|" + " --- |" * (3 + len(columns))]
    by_row: dict[tuple[int, str, str], dict[tuple[str, str], str]] = {}
    for cell in sorted(cells, key=lambda cell: cell.n):
        row = by_row.setdefault((cell.n, cell.generator, cell.verifier), {})
        row[cell.category, cell.figure] = _percent(cell.value, cell.interval)
    for (n, generator, verifier), row in by_row.items():
        shown = " | ".join(row.get(column, "–") for column in columns)
        lines.append(f"| {n} | {generator} | {verifier} | {shown} |")
    if judged:
        lines += ["", "| generator | verifier | AUC | AP | answers with a score |", "|" + " --- |" * 5]
        for one in judged:
            figured = [(one.auc, one.auc_interval), (one.ap, one.ap_interval), (one.scored, None)]
            shown = " | ".join("–" if value is None else _percent(value, i) for value, i in figured)
            lines.append(f"| {one.generator} | {one.verifier} | {shown} |")
    return "\n".join(lines) + "\n"


def _percent(value: float, interval: Sequence[float] | None) -> str:
    shown = f"{100 * value:.1f}"
    return f"{shown} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else shown


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
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
    judge = make() if left else None
    for first in range(0, len(left), batch):
        assert judge is not None
        part = left[first : first + batch]
        own = {problems[index].id for index in part}
        asked = [sample for sample in samples if sample.problem in own]
        scores = iter(judge_samples(judge, task, [problems[index] for index in part], asked, batch))
        found: dict[str, list[float | None]] = {}
        for sample in asked:
            found.setdefault(sample.problem, []).append(next(scores))
        made = [JudgedProblem(index, found[problems[index].id]) for index in part]
        journal.append(*map(asdict, made))
        known |= {row.index: row for row in made}
    result: list[float | None] = [None] * len(samples)
    for index, problem in enumerate(problems):
        for place, score in zip(rows[problem.id], known[index].scores, strict=True):
            result[place] = score
    return result


def judge_samples(
    judge: Verifier, task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample], batch: int = 64
) -> list[float | None]:
    """Return a judge's scores in the order of the samples; None for answers that could not be read."""
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
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
