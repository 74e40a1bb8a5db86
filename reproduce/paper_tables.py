"""Methods x benchmarks from stored samples, for `reproduce.adpo` and `reproduce.adapo`.

Nothing is sampled and no model is loaded: the figures are counted again from what `selfverify eval`, `train`
and `reproduce.grid` have stored. Several folders of one method on one benchmark are its training seeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer

from reproduce.by_size import ALL, TURN_FIGURES, Place, columns_for, figures_by_size, figures_of_turns
from reproduce.statistics import MeasuredRun, difference, pooled
from reproduce.stored_runs import (
    MeasuredStore,
    problems_of,
    read_store,
    refuse_different,
    run_sources,
)
from reproduce.tables import TESTED, Labels, difference_table, figure_table
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_text
from selfverify.evaluation.breakdown import Columns, columns_of
from selfverify.evaluation.metrics import HEADLINE
from selfverify.selection.strategies import STRATEGIES, find_strategy

MEAN = "mean"
"""The benchmark of means over all benchmarks."""
TURNS = "Two turns"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the tables show.

    Args:
        sizes: The numbers of samples; none are samples of two turns.
        strategies: What chooses among several samples.
        score: The scores that strategies read.
        categories: Columns of problems' categories, which become columns of the tables.
        against: ``METHOD`` or ``METHOD:STRATEGY``, the row that the others are compared with.
    """

    sizes: Sequence[int] = ()
    strategies: Sequence[str] = ()
    score: str = HEADLINE
    categories: Sequence[str] = ()
    against: str | None = None


@dataclass(slots=True)
class PaperTables:
    """The tables' content.

    Args:
        measured: By a table's title, and the row's method and what chooses in it, the runs of each seed.
        notes: What has to be said of cells that are empty.
    """

    measured: dict[str, dict[Labels, dict[int, MeasuredRun]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, title: str, row: Labels, seed: int, run: MeasuredRun) -> None:
        """Add the figures of one run on one benchmark."""
        by_seed = self.measured.setdefault(title, {}).setdefault(row, {})
        by_seed[seed] = by_seed[seed] | run if seed in by_seed else run


def paper_tables(rows: Sequence[str], asked: Asked) -> PaperTables:
    """Count the figures of all methods on all benchmarks.

    Args:
        rows: The rows' folders, as `run_sources` reads them.
        asked: What is shown of them.

    Raises:
        ConfigError: Rows of a benchmark were measured in different ways or have another number of turns, no
            benchmark has a category, a folder was made with a version whose settings this one does not know,
            or all rows have fewer samples than all sizes.
        DataError: A store is damaged, or rows of a benchmark are about different problems.
    """
    for name in asked.strategies:
        find_strategy(name)
    found, known = PaperTables(), set[str]()
    sources = run_sources(rows)
    for benchmark in dict.fromkeys(source.benchmark for source in sources):
        measured = [read_store(source) for source in sources if source.benchmark == benchmark]
        refuse_different(benchmark, measured)
        _refuse_turns(measured, bool(asked.sizes))
        seed = zlib.crc32(benchmark.encode())
        order = list(dict.fromkeys(sample.problem for sample in measured[0].samples))
        seeds = dict.fromkeys((one.source.method for one in measured), 0)
        task, problems = problems_of(measured[0], found.notes) if asked.sizes else (None, {})
        metas = [problems[name].meta if name in problems else {} for name in order]
        columns = columns_of([meta.get("categories") or {} for meta in metas])
        known |= columns.keys()
        found.notes += [
            f"{benchmark}: its problems have no category {missing!r}."
            for missing in asked.categories
            if missing not in columns
        ]
        shown: Columns = {name: columns[name] for name in asked.categories if name in columns}
        for one in measured:
            method = one.source.method
            if task is None:
                run = figures_of_turns(one.samples, order, benchmark, seed)
                found.add(TURNS, (method,), seeds[method], run)
            else:
                by_row = figures_by_size(
                    one.samples, task, problems, asked.strategies, sizes=asked.sizes, headline=asked.score,
                    columns=shown, order=order, benchmark=benchmark, seed=seed,
                )  # fmt: skip
                for (n, chooser), run in by_row.items():
                    found.add(f"N = {n}", (method, _label(chooser)), seeds[method], run)
                found.notes += [note for note in _lacking(one, asked, len(order)) if note not in found.notes]
            seeds[method] += 1
    if unknown := [name for name in asked.categories if name not in known]:
        have = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no benchmark has a category {unknown[0]!r}; categories: {have}")
    if not found.measured:
        sizes = ", ".join(map(str, asked.sizes))
        raise ConfigError(f"no row has as many samples as a size asks for ({sizes}); say smaller ones")
    found.measured = {n: found.measured[n] for n in sorted(found.measured, key=lambda n: (len(n), n))}
    _add_means(found)
    return found


def _refuse_turns(measured: Sequence[MeasuredStore], single: bool) -> None:
    for one in measured:
        if one.two_turns == single:
            turns, other = ("two turns", "adapo") if single else ("one turn", "adpo")
            raise ConfigError(
                f"{one.source.store} holds samples of {turns}; `python -m reproduce.{other}` reads them"
            )


def _lacking(one: MeasuredStore, asked: Asked, problems: int) -> Iterator[str]:
    """Why a row has empty cells: too few samples for a size, no scores for a strategy."""
    where = f"{one.source.method} on {one.source.benchmark}"
    if few := [str(n) for n in asked.sizes if n * problems > len(one.samples)]:
        yield f"{where}: no N = {', '.join(few)}, as it has fewer samples."
    if all(sample.scores.get(asked.score) is None for sample in one.samples):
        for name in asked.strategies:
            if find_strategy(name).needs == "score":
                yield f"{where}: no {name!r}, as no answer has a {asked.score} score."


def _label(chooser: str) -> str:
    return "–" if chooser == "first" else STRATEGIES[chooser].label


def _add_means(found: PaperTables) -> None:
    """Add the mean over benchmarks of each method that has two turns on all of them (AdaPO's Fig. 5)."""
    rows = found.measured.get(TURNS, {})
    benchmarks = list(
        dict.fromkeys(p.benchmark for of in rows.values() for run in of.values() for p in run.values)
    )
    if len(benchmarks) < 2:
        return
    for row, by_seed in rows.items():
        for seed, run in by_seed.items():
            places = {name: [Place(b, ALL, name) for b in benchmarks] for name in TURN_FIGURES}
            missing = [p.benchmark for p in places[TURN_FIGURES[0]] if p not in run.values]
            if missing:
                note = f"{row[0]}: no mean of seed {seed}, as it was not measured on {', '.join(missing)}."
                found.notes.append(note)
                continue
            means = {Place(MEAN, ALL, name): of for name, of in places.items()}
            by_seed[seed] = run | MeasuredRun(
                {mean: float(np.mean([run.values[p] for p in of])) for mean, of in means.items()},
                {mean: np.mean([run.draws[p] for p in of], axis=0) for mean, of in means.items()},
                {mean: sum(run.problems[p] for p in of) for mean, of in means.items()},
            )


def compared(found: PaperTables, asked: Asked) -> dict[str, dict[Labels, dict[Place, dict[str, Any]]]]:
    """Compare all rows with the one that is asked for, table by table.

    Raises:
        ConfigError: The tables have no such row.
    """
    if asked.against is None:
        return {}
    method, colon, strategy = asked.against.partition(":")
    methods = list(dict.fromkeys(row[0] for of in found.measured.values() for row in of))
    if method not in methods:
        raise ConfigError(
            f"--against {asked.against}: no row is of method {method!r}; methods: {', '.join(methods)}"
        )
    if colon and strategy not in asked.strategies:
        raise ConfigError(f"--against {asked.against}: no row is chosen by {strategy!r}; add it to --by")
    result: dict[str, dict[Labels, dict[Place, dict[str, Any]]]] = {}
    for title, rows in found.measured.items():
        for row, by_seed in rows.items():
            baseline = (method, *row[1:])
            if colon and row[1:] not in ((), ("–",)):
                baseline = (method, _label(strategy))
            if baseline in rows and baseline != row:
                found_here = difference(by_seed, rows[baseline], "paired" if row[0] == method else "apart")
                result.setdefault(title, {})[row] = found_here
    return result


def markdown(found: PaperTables, asked: Asked) -> str:
    """The tables as text, in percent; the best figure of a column is bold."""
    parts = []
    differences = compared(found, asked)
    head = ["method", "chosen by"] if asked.sizes else ["method"]
    for title, rows in found.measured.items():
        columns = columns_for(place for of in rows.values() for run in of.values() for place in run.values)
        parts += [f"## {title}", figure_table(head, {row: pooled(of) for row, of in rows.items()}, columns)]
        if title in differences:
            text, count = difference_table(head, differences[title], columns)
            parts += [f"Difference from **{asked.against}** {TESTED.format(count=count)}", text]
    parts.append("95 % intervals: bootstrap over problems, and over training seeds where there are several.")
    return "\n\n".join([*parts, *(f"- {note}" for note in found.notes)]) + "\n"


def show_tables(rows: Sequence[str], asked: Asked, output: Path | None) -> None:
    """Count, print and write the tables, as both papers' commands do."""
    text = markdown(paper_tables(rows, asked), asked)
    if output is not None:
        write_text(output, text)
    typer.echo(text, nl=False)
