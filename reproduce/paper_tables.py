"""Methods x benchmarks from stored samples, for `reproduce.adpo` and `reproduce.adapo`.

Nothing is sampled and no model is loaded: the figures are counted again from what `selfverify eval`, `train`
and `reproduce.grid` have stored. METHOD:BENCHMARK=FOLDER says which samples are meant; several folders of one
method on one benchmark are its training seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from reproduce.by_size import ALL, TURN_FIGURES, Place, columns_for, figures_by_size, figures_of_turns
from reproduce.grid_file import BEFORE
from reproduce.scripts import show
from reproduce.statistics import MeasuredRun, difference, mean_of, pooled
from reproduce.tables import Column, Labels, beside, plain, seed_tables
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import Columns, columns_of
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.metrics import HEADLINE
from selfverify.evaluation.samples import CORRECT_1, STORES, find_store, read_samples
from selfverify.experiments.registry import make_task
from selfverify.reports.run_data import read_json
from selfverify.selection.strategies import STRATEGIES, find_strategy
from selfverify.tasks.base import Task

Rows = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="METHOD:BENCHMARK=FOLDER|TABLE...",
        help="Runs, evaluations or studies' folders; with --paper also numbers of its tables, else all.",
    ),
]
"""The argument of both papers' commands."""
RESULTS = "results.json"
"""The file by which the folder of a study is told from others."""


RunSource = tuple[str, str, Path]
"""The method that a row belongs to, the benchmark that was measured, and the file of samples."""


def run_sources(named: Sequence[str]) -> list[RunSource]:
    """Find the stores that are meant.

    Args:
        named: ``METHOD:BENCHMARK=FOLDER`` or ``METHOD=FOLDER`` (the benchmark is then the task's name), where
            a file of samples may stand for the folder; or a study's folder, whose tasks are benchmarks and
            whose variants are methods.

    Raises:
        ConfigError: A text has another form, or there are no samples.
        DataError: A study's file is damaged.
    """
    found: list[RunSource] = []
    for text in named:
        if (Path(text).expanduser() / RESULTS).is_file():
            found += _of_study(Path(text).expanduser())
            continue
        name, equals, place = text.partition("=")
        method, colon, benchmark = name.partition(":")
        if not (equals and method and place) or (colon and not benchmark):
            raise ConfigError(
                f"{text}: a row is METHOD:BENCHMARK=FOLDER, such as adpo:mathvista=runs/adpo/eval, or a "
                f"study's folder with its {RESULTS}"
            )
        store = find_store(Path(place).expanduser())
        found.append((method, benchmark or str(read_samples(store)[0].get("task", "?")), store))
    return found


def _of_study(folder: Path) -> list[RunSource]:
    results: dict[str, Any] = read_json(folder / RESULTS, dict[str, Any]) or {}
    found = []
    for task, about in results.get("tasks", {}).items():
        before = folder / task / BEFORE / STORES[0]
        found += [(BEFORE, task, before)] if before.is_file() else []
        for variant, row in about["variants"].items():
            for seed in row["seeds"]:
                store = folder / task / variant / f"seed-{seed}" / STORES[1]
                if not store.is_file():
                    raise ConfigError(f"{store} is missing, which {folder / RESULTS} tells of")
                found.append((variant, task, store))
    return found


_SAME = ("task", "temperature", "top_p", "max_new_tokens", "split")
"""Settings of an evaluation that rows of one benchmark share."""


class MeasuredStore:
    """One store.

    Args:
        method: The row that it belongs to.
        benchmark: What was measured.
        store: The file.

    Attributes:
        header: Its settings.
        samples: What is stored.

    Raises:
        DataError: It holds no samples, or its header lacks settings.
    """

    def __init__(self, method: str, benchmark: str, store: Path) -> None:
        self.method, self.benchmark, self.store = method, benchmark, store
        self.header, self.samples = read_samples(store)
        if not self.samples:
            raise DataError(f"{store} holds no samples yet: run its evaluation again, which goes on")
        if missing := [name for name in ("task_options", *_SAME) if name not in self.header]:
            raise DataError(
                f"{store}: its header has no {missing[0]!r}; it was made with another version, or is no "
                "evaluation's: run it again"
            )


def refuse_different(benchmark: str, measured: Sequence[MeasuredStore]) -> None:
    """Refuse rows that were not measured alike on the same problems.

    Raises:
        ConfigError: They are about other tasks, or were sampled otherwise.
        DataError: They are about other problems.
    """
    first = measured[0]
    names = {sample.problem for sample in first.samples}
    for one in measured[1:]:
        both = f"{benchmark}: {one.store} and {first.store}"
        for name in _SAME:
            if one.header[name] != first.header[name]:
                raise ConfigError(
                    f"{both} were measured with {name}={one.header[name]} and {name}={first.header[name]}; "
                    "measure both alike"
                )
        if others := names ^ {sample.problem for sample in one.samples}:
            raise DataError(f"{both} need the same problems; {len(others)} differ, such as {min(others)}")


def problems_of(measured: MeasuredStore, notes: list[str]) -> tuple[Task, dict[str, Problem]]:
    """The task, and its problems by id without images; none where their file cannot be read any more.

    Raises:
        ConfigError: The task had other options when the store was made.
    """
    header, store = measured.header, measured.store
    try:
        task = make_task(header["task"], **header["task_options"])
    except (ValidationError, ConfigError) as error:
        fault = " ".join(str(error).split())
        raise ConfigError(
            f"{store} was made with another version of this library, whose task {header['task']} had other "
            f"options: {fault[:200]}"
        ) from None
    if task.writes_places:
        task.set_coordinate_space(lambda size: size)  # targets are in pixels, whoever answers
    try:
        config = EvaluationConfig(split=header["split"], problems=header.get("problems"), on_bad="skip")
        held_out = HeldOut(task, config)
        for index in range(held_out.total):  # one at a time: all images may not fit into memory
            held_out.make([index])
        return task, {problem.id: problem for problem in held_out.known(range(held_out.total)).values()}
    except SelfVerifyError as error:
        if task.kind == "continuous":
            raise
        notes.append(f"{measured.benchmark}: no categories, as its problems cannot be read: {error}")
        return task, {}


MEAN = "mean"
"""The benchmark of means over all benchmarks."""
TURNS = "Two turns"


@dataclass(frozen=True, slots=True)
class Asked:
    """The content of the tables.

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
    for benchmark in dict.fromkeys(of for _, of, _ in sources):
        measured = [MeasuredStore(*source) for source in sources if source[1] == benchmark]
        refuse_different(benchmark, measured)
        for one in measured:
            single = bool(asked.sizes)
            if all(CORRECT_1 in sample.rewards for sample in one.samples) == single:
                turns, other = ("two turns", "adapo") if single else ("one turn", "adpo")
                raise ConfigError(
                    f"{one.store} holds samples of {turns}; `python -m reproduce.{other}` reads them"
                )
        order = list(dict.fromkeys(sample.problem for sample in measured[0].samples))
        seeds = dict.fromkeys((one.method for one in measured), 0)
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
            if task is None:
                run = figures_of_turns(one.samples, order, benchmark)
                found.add(TURNS, (one.method,), seeds[one.method], run)
            else:
                by_row = figures_by_size(
                    one.samples, task, problems, asked.strategies, sizes=asked.sizes, headline=asked.score,
                    columns=shown, order=order, benchmark=benchmark,
                )  # fmt: skip
                for (n, chooser), run in by_row.items():
                    found.add(f"N = {n}", (one.method, _label(chooser)), seeds[one.method], run)
                found.notes += [note for note in _lacking(one, asked, len(order)) if note not in found.notes]
            seeds[one.method] += 1
    if unknown := [name for name in asked.categories if name not in known]:
        have = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no benchmark has a category {unknown[0]!r}; categories: {have}")
    if not found.measured:
        sizes = ", ".join(map(str, asked.sizes))
        raise ConfigError(f"no row has as many samples as a size asks for ({sizes}); say smaller ones")
    found.measured = {n: found.measured[n] for n in sorted(found.measured, key=lambda n: (len(n), n))}
    _add_means(found)
    return found


def _lacking(one: MeasuredStore, asked: Asked, problems: int) -> Iterator[str]:
    """Why a row has empty cells: too few samples for a size, no scores for a strategy."""
    where = f"{one.method} on {one.benchmark}"
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
    runs = [run for of in rows.values() for run in of.values()]
    benchmarks = list(dict.fromkeys(place.benchmark for run in runs for place in run))
    if len(benchmarks) < 2:
        return
    for row, by_seed in rows.items():
        for seed, run in by_seed.items():
            places = {name: [Place(b, ALL, name) for b in benchmarks] for name in TURN_FIGURES}
            missing = [p.benchmark for p in places[TURN_FIGURES[0]] if p not in run]
            if missing:
                note = f"{row[0]}: no mean of seed {seed}, as it was not measured on {', '.join(missing)}."
                found.notes.append(note)
                continue
            means = {Place(MEAN, ALL, name): of for name, of in places.items()}
            by_seed[seed] = run | {mean: mean_of([run[p] for p in of]) for mean, of in means.items()}


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

    def columns(title: str) -> list[Column]:
        return columns_for(p for of in found.measured[title].values() for run in of.values() for p in run)

    head = ["method", "chosen by"] if asked.sizes else ["method"]
    parts = seed_tables(head, found.measured, columns, compared(found, asked), str(asked.against))
    parts.append("95 % intervals: over problems, and over training seeds where there are several.")
    return "\n\n".join([*parts, *(f"- {note}" for note in found.notes)]) + "\n"


def show_tables(words: Sequence[str] | None, asked: Asked, output: Path | None, paper: str | None) -> None:
    """Count, print and write the tables, as both papers' commands do.

    Args:
        words: The rows' folders, and with ``paper`` numbers of its tables.
        asked: What is shown of the rows.
        output: A file for the tables.
        paper: Whose published figures are shown, too, with the rows that have some of the same benchmarks.

    Raises:
        ConfigError: Nothing is asked for.
    """
    numbers = [word for word in words or () if paper and word.isdigit()]
    rows = [word for word in words or () if word not in numbers]
    if not rows and not paper:
        raise ConfigError("name rows as METHOD:BENCHMARK=FOLDER, or ask for the paper's figures with --paper")
    found = paper_tables(rows, asked) if rows else PaperTables()
    parts = [markdown(found, asked)] if rows else []
    ours = {
        (*row, *title.split(" = ")[1:]): {_key(place): figure for place, figure in pooled(of).items()}
        for title, by_row in found.measured.items()
        for row, of in by_row.items()
    }
    parts += beside(paper, ours, numbers=numbers) if paper else []
    show("\n\n".join(part.rstrip() for part in parts) + "\n", output)


def _key(place: Place) -> str:
    """What the columns of published tables are called."""
    return "/".join((plain(place.benchmark), place.category.partition(": ")[2] or ALL, place.figure))
