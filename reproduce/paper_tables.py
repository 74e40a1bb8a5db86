"""Methods x benchmarks from stored samples: ADPO's Tables 2 to 4 and AdaPO's Table 1 and Fig. 5.

Nothing is sampled and no model is loaded: the figures are counted again from what `selfverify eval`, `train`
and `study` have stored. Several folders of one method on one benchmark are its training seeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.by_size import (
    ALL,
    SIZES,
    TURN_FIGURES,
    TURNS,
    FigurePlace,
    SizedFigures,
    figures_by_size,
    figures_of_turns,
)
from reproduce.statistics import compare, holm
from reproduce.stored_runs import (
    MeasuredStore,
    RunSource,
    note_versions,
    problems_of,
    read_store,
    refuse_different,
)
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import Columns, columns_of
from selfverify.evaluation.metrics import HEADLINE
from selfverify.evaluation.statistics import percentile_interval, pooled_draws
from selfverify.selection.rules import Floats
from selfverify.selection.strategies import find_strategy

BySeed = dict[tuple[str, str], dict[FigurePlace, list[tuple[float, Floats]]]]
"""By method and benchmark (empty for the mean over benchmarks): for each figure every training seed's value,
and its values on the draws of problems."""


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A row that the others are compared with.

    Args:
        method: Its method.
        strategy: What chooses in it; None for what chooses in the row that is compared.
    """

    method: str
    strategy: str | None = None

    def __str__(self) -> str:
        return self.method if self.strategy is None else f"{self.method}:{self.strategy}"

    def place(self, place: FigurePlace) -> FigurePlace:
        """Where it has the figure that another row has at ``place``."""
        single = place.n == 1 or place.chooser == TURNS
        return place if self.strategy is None or single else place._replace(chooser=self.strategy)


@dataclass(frozen=True, slots=True)
class RowComparison:
    """A figure against that of the baseline row.

    Args:
        method: The row.
        benchmark: The block of columns; empty for the mean over benchmarks.
        place: See `FigurePlace`.
        difference: The figure minus the baseline's.
        interval: 95 %, over problems and training seeds; None where nothing varies.
        p: Of no difference, two-sided.
        p_holm: The same, adjusted for all comparisons of the tables.
        seeds: Training seeds of the row.
        baseline_seeds: Training seeds of the baseline.
    """

    method: str
    benchmark: str
    place: FigurePlace
    difference: float
    interval: list[float] | None
    p: float | None
    p_holm: float | None
    seeds: int
    baseline_seeds: int


def baseline_row(text: str, methods: Sequence[str], strategies: Sequence[str]) -> BaselineRow:
    """Read ``METHOD`` or ``METHOD:STRATEGY``.

    Raises:
        ConfigError: The tables have no such row.
    """
    method, colon, strategy = text.partition(":")
    if method not in methods:
        raise ConfigError(f"--against {text}: no row is of method {method!r}; methods: {', '.join(methods)}")
    if not colon:
        return BaselineRow(method)
    find_strategy(strategy)
    if strategy not in strategies:
        raise ConfigError(
            f"--against {text}: the tables do not show {strategy!r}; add it to --by {','.join(strategies)}"
        )
    return BaselineRow(method, strategy)


def comparisons(
    measured: BySeed,
    problems: Mapping[tuple[str, FigurePlace], int],
    baseline: BaselineRow,
    notes: list[str],
) -> list[RowComparison]:
    """Compare every figure with that of the baseline row, where it has one.

    Args:
        measured: All figures.
        problems: Their numbers of problems, by benchmark and place.
        baseline: What they are compared with.
        notes: Gets a line about what could not be compared.
    """
    found: list[RowComparison] = []
    for (method, benchmark), figures in measured.items():
        known = measured.get((baseline.method, benchmark), {})
        lacking: dict[str, None] = {}
        for place, own in figures.items():
            where = baseline.place(place)
            if method == baseline.method and where == place:
                continue
            if where not in known:
                lacking[place.chooser] = None
                continue
            other = known[where]
            if method == baseline.method:  # the same trained models, so that their seeds are paired, too
                own = [
                    (value - less, draws - by) for (value, draws), (less, by) in zip(own, other, strict=True)
                ]
                other = [(0.0, np.zeros_like(own[0][1]))]
            compared = compare(*_split(own), *_split(other), problems[benchmark, place])
            found.append(
                RowComparison(
                    method, benchmark, place, compared.difference, compared.interval, compared.p, None,
                    len(own), len(known[where]),
                )
            )  # fmt: skip
        if lacking:
            where_from = benchmark or "the mean over benchmarks"
            notes.append(
                f"{method} on {where_from}: no comparison of {', '.join(lacking)}, as {baseline} has no such "
                "figure there."
            )
    adjusted = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, adjusted, strict=True)]


def _split(own: Sequence[tuple[float, Floats]]) -> tuple[list[float], list[Floats]]:
    return [value for value, _ in own], [draws for _, draws in own]


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
    """The tables' content.

    Args:
        figures: In order.
        notes: What has to be said of cells that are empty.
        comparisons: The figures against those of ``against``; empty without.
        against: The row that the others are compared with.
    """

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: list[RowComparison] = field(default_factory=list)
    against: BaselineRow | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON."""
        cells = [{**asdict(f), "place": f.place._asdict()} for f in self.figures]
        found: dict[str, Any] = {"figures": cells, "notes": self.notes}
        if self.against is not None:
            compared = [{**asdict(c), "place": c.place._asdict()} for c in self.comparisons]
            found |= {"against": str(self.against), "comparisons": compared}
        return found


def paper_tables(
    sources: Sequence[RunSource],
    *,
    sizes: Sequence[int] = SIZES,
    strategies: Sequence[str] = ("majority", "best"),
    score: str = HEADLINE,
    categories: Sequence[str] = (),
    against: str | None = None,
) -> PaperTables:
    """Count the figures of all methods on all benchmarks.

    Args:
        sources: The rows' folders, in order.
        sizes: The numbers of samples.
        strategies: What chooses among several samples.
        score: The scores that strategies read.
        categories: Columns of problems' categories, which become columns of the tables.
        against: ``METHOD`` or ``METHOD:STRATEGY``, the row that the others are compared with.

    Raises:
        ConfigError: Rows of a benchmark were measured in different ways, no benchmark has a category, a
            folder was made with a version whose settings this one does not know, there is no such row to
            compare with, or all rows have fewer samples than all sizes.
        DataError: A store is damaged, or rows of a benchmark are about different problems.
    """
    for name in strategies:
        find_strategy(name)
    methods = list(dict.fromkeys(source.method for source in sources))
    baseline = None if against is None else baseline_row(against, methods, strategies)
    found, known = PaperTables(against=baseline), set[str]()
    short = set[tuple[str, str, int]]()
    measured_by: BySeed = {}
    for benchmark in dict.fromkeys(source.benchmark for source in sources):
        measured = [read_store(source) for source in sources if source.benchmark == benchmark]
        refuse_different(benchmark, measured)
        note_versions(measured, found.notes)
        order = list(dict.fromkeys(sample.problem for sample in measured[0].samples))
        task, problems = problems_of(measured[0], found.notes)
        columns = columns_of([_categories(problems.get(name)) for name in order])
        known |= columns.keys()
        for missing in [name for name in categories if name not in columns]:
            found.notes.append(f"{benchmark}: its problems have no category {missing!r}.")
        shown: Columns = {name: columns[name] for name in categories if name in columns}
        found.notes += [note for name in shown if (note := _unlike(benchmark, name, shown[name]))]
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
                short |= {(method, benchmark, n) for n in sizes if n * len(order) > len(one.samples)}
            for seeds in filter(None, parts):
                _add(found.figures, measured_by, method, benchmark, seeds)
    if unknown := [name for name in categories if name not in known]:
        have = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no benchmark has a category {unknown[0]!r}; categories: {have}")
    _note_sizes(found, short, sizes)
    _add_means(found, measured_by)
    if baseline is not None:
        counts = {(f.benchmark, f.place): f.problems for f in found.figures}
        found.comparisons = comparisons(measured_by, counts, baseline, found.notes)
    return found


def _add(
    figures: list[Figure],
    measured_by: BySeed,
    method: str,
    benchmark: str,
    seeds: Sequence[SizedFigures],
) -> None:
    """Add the figures of a method on a benchmark, pooled over its seeds."""
    each = [one.drawn(zlib.crc32(benchmark.encode())) for one in seeds]
    kept = measured_by.setdefault((method, benchmark), {})
    for place in dict.fromkeys(place for one in each for place in one):
        own = [one[place] for one in each if place in one]
        if np.isnan([value for value, _ in own]).any():
            continue
        kept[place] = own
        figures.append(_pooled(method, benchmark, place, own, seeds[0].counts[place.category]))


def _pooled(
    method: str, benchmark: str, place: FigurePlace, own: Sequence[tuple[float, Floats]], problems: int
) -> Figure:
    interval = percentile_interval(pooled_draws([draws for _, draws in own]))
    return Figure(method, benchmark, place, _mean(own), interval, problems, len(own))


def _add_means(found: PaperTables, measured_by: BySeed) -> None:
    """Add the mean over benchmarks of each method that has all of them (AdaPO's Fig. 5)."""
    turns = {
        key: {place.figure: (place, own) for place, own in figures.items() if place.chooser == TURNS}
        for key, figures in measured_by.items()
    }
    turns = {key: figures for key, figures in turns.items() if figures}
    benchmarks = list(dict.fromkeys(benchmark for _, benchmark in turns))
    if len(benchmarks) < 2:
        return
    problems = {f.benchmark: f.problems for f in found.figures if f.place.chooser == TURNS}
    for method in dict.fromkeys(method for method, _ in turns):
        missing = [benchmark for benchmark in benchmarks if (method, benchmark) not in turns]
        if missing:
            found.notes.append(f"{method}: no mean, as it was not measured on {', '.join(missing)}.")
            continue
        for name in TURN_FIGURES:
            places, each = zip(*(turns[method, benchmark][name] for benchmark in benchmarks), strict=True)
            place = FigurePlace(TURNS, places[0].n, ALL, name)
            value = float(np.mean([_mean(own) for own in each]))
            draws = np.mean([pooled_draws([draws for _, draws in own]) for own in each], axis=0)
            total, seeds = sum(problems[b] for b in benchmarks), min(map(len, each))
            found.figures.append(Figure(method, "", place, value, percentile_interval(draws), total, seeds))
            if seeds == max(map(len, each)):  # each seed has a mean over the benchmarks
                measured_by.setdefault((method, ""), {})[place] = [
                    (_mean(seed), np.mean([draws for _, draws in seed], axis=0))
                    for seed in zip(*each, strict=True)
                ]


def _mean(own: Sequence[tuple[float, Floats]]) -> float:
    return float(np.mean([value for value, _ in own]))


def _categories(problem: Problem | None) -> Mapping[str, Sequence[str]]:
    found: Mapping[str, Sequence[str]] = (problem.meta.get("categories") or {}) if problem else {}
    return found


def _unlike(benchmark: str, column: str, values: Mapping[str, NDArray[np.bool_]]) -> str:
    """What has to be said of a column of categories: all problems have one value, or some have none."""
    without = ~np.any([*values.values()], axis=0)
    if without.any():
        return f"{benchmark}: {without.sum()} of {len(without)} problems have no {column!r}."
    [value, *others] = values
    return "" if others else f"{benchmark}: no columns of {column!r}, which is {value!r} for all problems."


def _note_sizes(found: PaperTables, short: AbstractSet[tuple[str, str, int]], sizes: Sequence[int]) -> None:
    """Name the rows that have too few samples for a size of the tables.

    Raises:
        ConfigError: No row has enough for any size.
    """
    shown = {f.place.n for f in found.figures if f.place.chooser != TURNS}
    if short and not found.figures:
        text = ", ".join(map(str, sizes))
        raise ConfigError(f"no row has as many samples as a size asks for ({text}); say smaller ones")
    rows: dict[tuple[str, str], list[int]] = {}
    for method, benchmark, n in sorted(short):
        if n in shown:
            rows.setdefault((method, benchmark), []).append(n)
    for (method, benchmark), counts in rows.items():
        lacking = ", ".join(map(str, counts))
        found.notes.append(f"{method} on {benchmark}: no N = {lacking}, as it has fewer samples.")


def _note_scores(one: MeasuredStore, strategies: Sequence[str], score: str, notes: list[str]) -> None:
    if any(sample.scores.get(score) is not None for sample in one.samples):
        return
    for name in strategies:
        if find_strategy(name).needs == "score":
            where = f"{one.source.method} on {one.source.benchmark}"
            text = f"{where}: no {name!r}, as no answer has a {score} score."
            if text not in notes:
                notes.append(text)
