"""Methods x benchmarks from stored samples: ADPO's Tables 2 to 4 and AdaPO's Table 1 and Fig. 5.

Nothing is sampled and no model is loaded: the figures are counted again from what `selfverify eval`, `train`
and `study` have stored. Several folders of one method on one benchmark are its training seeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pydantic import ValidationError

from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.evaluation_settings import EvaluationConfig
from selfverify.core.problem import Problem
from selfverify.core.version import __version__
from selfverify.evaluation.breakdown import Columns, columns_of
from selfverify.evaluation.by_size import (
    ALL,
    SIZES,
    TURN_FIGURES,
    TURNS,
    FigurePlace,
    SizedFigures,
    figures_by_size,
    figures_of_turns,
)
from selfverify.evaluation.held_out import HeldOut
from selfverify.evaluation.metrics import HEADLINE
from selfverify.evaluation.statistics import percentile_interval, pooled_draws
from selfverify.evaluation.store import CORRECT_1, StoredSample, find_store, read_samples
from selfverify.experiments.registry import make_task
from selfverify.experiments.study.run_sources import RunSource
from selfverify.reports.run_data import read_metrics
from selfverify.selection.rules import Floats
from selfverify.selection.strategies import find_strategy
from selfverify.tasks.base import Task

_SAME = ("temperature", "top_p", "max_new_tokens", "split")
"""Settings of an evaluation that rows of one benchmark share."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A cell of the tables.

    Args:
        method: The row.
        benchmark: The block of columns; empty for the mean over benchmarks.
        place: What chooses, N, category and figure.
        value: The mean over the training seeds.
        interval: 95 %: bootstrap over problems, and over seeds where there are several.
        problems: Problems of the category.
        seeds: Training seeds.
    """

    method: str
    benchmark: str
    place: FigurePlace
    value: float
    interval: list[float] | None
    problems: int
    seeds: int


@dataclass(slots=True)
class PaperTables:
    """The tables' content: figures in order, and what has to be said of cells that are empty."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON."""
        cells = [{**asdict(f), "place": f.place._asdict()} for f in self.figures]
        return {"figures": cells, "notes": self.notes}


@dataclass(slots=True)
class _Measured:
    """One store."""

    source: RunSource
    header: dict[str, Any]
    samples: list[StoredSample]

    @property
    def two_turns(self) -> bool:
        return all(CORRECT_1 in sample.rewards for sample in self.samples)


def paper_tables(
    sources: Sequence[RunSource],
    *,
    sizes: Sequence[int] = SIZES,
    strategies: Sequence[str] = ("majority", "best"),
    score: str = HEADLINE,
    categories: Sequence[str] = (),
) -> PaperTables:
    """Count the figures of all methods on all benchmarks.

    Args:
        sources: The rows' folders, in order.
        sizes: The numbers of samples.
        strategies: What chooses among several samples.
        score: The scores that strategies read.
        categories: Columns of problems' categories, which become columns of the tables.

    Raises:
        ConfigError: Rows of a benchmark were measured in different ways, no benchmark has a category, or a
            folder was made with a version whose settings this one does not know.
        DataError: A store is damaged, or rows of a benchmark are about different problems.
    """
    for name in strategies:
        find_strategy(name)
    found, known = PaperTables(), set[str]()
    drawn: dict[tuple[str, str, str], Floats] = {}
    for benchmark in dict.fromkeys(source.benchmark for source in sources):
        measured = [_read(source) for source in sources if source.benchmark == benchmark]
        _refuse_different(benchmark, measured)
        _note_versions(measured, found.notes)
        order = list(dict.fromkeys(sample.problem for sample in measured[0].samples))
        task, problems = _problems(measured[0], found.notes)
        columns = columns_of([_categories(problems.get(name)) for name in order])
        known |= columns.keys()
        for missing in [name for name in categories if name not in columns]:
            found.notes.append(f"{benchmark}: its problems have no category {missing!r}.")
        shown: Columns = {name: columns[name] for name in categories if name in columns}
        for method in dict.fromkeys(one.source.method for one in measured):
            own = [one for one in measured if one.source.method == method]
            parts: list[list[SizedFigures]] = [[], []]
            for one in own:
                if one.two_turns:
                    parts[1].append(figures_of_turns(one.samples, order))
                    continue
                parts[0].append(
                    figures_by_size(
                        one.samples, task, problems, strategies,
                        sizes=sizes, headline=score, columns=shown, order=order,
                    )
                )  # fmt: skip
                _note_scores(one, strategies, score, found.notes)
            for seeds in filter(None, parts):
                _add(found.figures, drawn, method, benchmark, seeds)
    if unknown := [name for name in categories if name not in known]:
        have = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no benchmark has a category {unknown[0]!r}; categories: {have}")
    _add_means(found, drawn)
    return found


def _add(
    figures: list[Figure],
    drawn: dict[tuple[str, str, str], Floats],
    method: str,
    benchmark: str,
    seeds: Sequence[SizedFigures],
) -> None:
    """Add the figures of a method on a benchmark, pooled over its seeds."""
    each = [one.drawn(zlib.crc32(benchmark.encode())) for one in seeds]
    for place in dict.fromkeys(place for one in each for place in one):
        own = [one[place] for one in each if place in one]
        values, draws = [value for value, _ in own], pooled_draws([of for _, of in own])
        if np.isnan(values).any():
            continue
        count = seeds[0].counts[place.category]
        figures.append(
            Figure(
                method, benchmark, place, float(np.mean(values)), percentile_interval(draws), count, len(own)
            )
        )
        if place.chooser == TURNS:
            drawn[method, benchmark, place.figure] = draws


def _add_means(found: PaperTables, drawn: Mapping[tuple[str, str, str], Floats]) -> None:
    """Add the mean over benchmarks of each method that has all of them (AdaPO's Fig. 5)."""
    benchmarks = list(dict.fromkeys(benchmark for _, benchmark, _ in drawn))
    if len(benchmarks) < 2:
        return
    by_place = {(f.method, f.benchmark, f.place.figure): f for f in found.figures if f.place.chooser == TURNS}
    for method in dict.fromkeys(method for method, _, _ in drawn):
        missing = [b for b in benchmarks if (method, b, TURN_FIGURES[0]) not in drawn]
        if missing:
            found.notes.append(f"{method}: no mean, as it was not measured on {', '.join(missing)}.")
            continue
        for name in TURN_FIGURES:
            own = [by_place[method, benchmark, name] for benchmark in benchmarks]
            draws = np.mean([drawn[method, benchmark, name] for benchmark in benchmarks], axis=0)
            found.figures.append(
                Figure(
                    method,
                    "",
                    FigurePlace(TURNS, own[0].place.n, ALL, name),
                    float(np.mean([f.value for f in own])),
                    percentile_interval(draws),
                    sum(f.problems for f in own),
                    min(f.seeds for f in own),
                )
            )


def _read(source: RunSource) -> _Measured:
    header, samples = read_samples(find_store(source.store))
    if not samples:
        raise DataError(f"{source.store} holds no samples yet: run its evaluation again, which goes on")
    missing = [name for name in ("task", "task_options", *_SAME) if name not in header]
    if missing:
        raise DataError(
            f"{source.store}: its header has no {missing[0]!r}; it was made with another version, or is no "
            "evaluation's: run it again"
        )
    return _Measured(source, header, samples)


def _refuse_different(benchmark: str, measured: Sequence[_Measured]) -> None:
    """Refuse rows that were not measured alike on the same problems."""
    first = measured[0]
    names = {sample.problem for sample in first.samples}
    for one in measured[1:]:
        if one.header["task"] != first.header["task"]:
            raise ConfigError(
                f"{benchmark}: {one.source.store} is about task {one.header['task']}, and "
                f"{first.source.store} about {first.header['task']}"
            )
        for name in _SAME:
            if one.header[name] != first.header[name]:
                raise ConfigError(
                    f"{benchmark}: {one.source.store} was measured with {name}={one.header[name]}, and "
                    f"{first.source.store} with {first.header[name]}; measure both alike"
                )
        others = names ^ {sample.problem for sample in one.samples}
        if others:
            raise DataError(
                f"{benchmark}: {one.source.store} and {first.source.store} need the same problems; "
                f"{len(others)} differ, such as {min(others)}"
            )


def _problems(measured: _Measured, notes: list[str]) -> tuple[Task, dict[str, Problem]]:
    """The task, and its problems by id without images; none where their file cannot be read any more."""
    header, store = measured.header, measured.source.store
    try:
        task = make_task(header["task"], **header["task_options"])
    except (ValidationError, ConfigError) as error:
        fault = " ".join(str(error).split())
        raise ConfigError(
            f"{store} was made with another version of this library, whose task {header['task']} had other "
            f"options: {fault[:200]}"
        ) from None
    if task.writes_places:
        task.use_space(lambda size: size)  # targets are in pixels, whoever answers
    try:
        held_out = HeldOut(
            task,
            EvaluationConfig(split=header["split"], problems=header.get("problems"), on_bad="skip"),
        )
        for index in range(held_out.total):  # one at a time: all images may not fit into memory
            held_out.make([index])
        return task, {problem.id: problem for problem in held_out.known(range(held_out.total)).values()}
    except SelfVerifyError as error:
        if task.kind == "continuous":
            raise
        notes.append(f"{measured.source.benchmark}: no categories, as its problems cannot be read: {error}")
        return task, {}


def _categories(problem: Problem | None) -> Mapping[str, Sequence[str]]:
    found: Mapping[str, Sequence[str]] = (problem.meta.get("categories") or {}) if problem else {}
    return found


def _note_scores(one: _Measured, strategies: Sequence[str], score: str, notes: list[str]) -> None:
    if any(sample.scores.get(score) is not None for sample in one.samples):
        return
    for name in strategies:
        if find_strategy(name).needs == "score":
            where = f"{one.source.method} on {one.source.benchmark}"
            text = f"{where}: no {name!r}, as no answer has a {score} score."
            if text not in notes:
                notes.append(text)


def _note_versions(measured: Sequence[_Measured], notes: list[str]) -> None:
    """Say where another version has sampled; the figures are counted by this one."""
    for one in measured:
        version = read_metrics(one.source.folder).get("version")
        if version not in (None, __version__):
            notes.append(f"{one.source.store} was sampled with version {version}; this is {__version__}.")
