"""ADPO's Tables 2 to 4 and AdaPO's Table 1 and Fig. 5 of our own runs: `python -m reproduce.adpo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from reproduce.by_size import ALL, LABELS, TURNS, sizes_of
from reproduce.paper_tables import Figure, PaperTables, RowComparison, paper_tables
from reproduce.scripts import script
from reproduce.stored_runs import run_sources
from reproduce.tables import grid
from selfverify.cli.options import Json, print_json, settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_text
from selfverify.selection.strategies import STRATEGIES

_SIGNED = ("delta",)
_NOT_BETTER = ("0->1", "1->0")


def markdown(tables: PaperTables, intervals: bool = True) -> str:
    """The tables as text, in percent; the best figure of a column (and N) is bold.

    Args:
        tables: What `paper_tables` has counted.
        intervals: Whether 95 % intervals are shown.
    """
    chosen = [f for f in tables.figures if f.place.chooser != TURNS]
    turns = [f for f in tables.figures if f.place.chooser == TURNS and f.benchmark]
    means = [f for f in tables.figures if f.place.chooser == TURNS and not f.benchmark]
    parts = []
    if chosen:
        parts += ["## By number of samples (%)", _by_size(chosen, intervals)]
    if turns:
        parts += ["## Two turns (%)", _plain(turns, intervals)]
    if means:
        parts += ["## Two turns: mean over the benchmarks (%)", _plain(means, intervals)]
    if tables.against is not None:
        parts += _compared(tables, intervals)
    every = "95 % intervals: bootstrap over problems" if intervals else "Without intervals"
    several = any(f.seeds > 1 for f in tables.figures)
    parts.append(f"{every}{', and over training seeds' if several and intervals else ''}. Best in bold.")
    return "\n\n".join([*parts, *(f"- {note}" for note in tables.notes)]) + "\n"


def _compared(tables: PaperTables, intervals: bool) -> list[str]:
    """How far the rows are from the baseline row, and how that was tested."""
    against, found = tables.against, tables.comparisons
    if against is None or not found:
        return []
    whose = f"{against.method}'s row" + (f" chosen by {against.strategy}" if against.strategy else "")
    parts = [f"## Difference from {against} (points)"]
    chosen = [c for c in found if c.place.chooser != TURNS]
    turns = [c for c in found if c.place.chooser == TURNS]
    if chosen:
        head, keys = ["N", "method", "chosen by"], [(c.place.n, c.method, c.place.chooser) for c in chosen]
        lines = [
            ([str(n), method, _chosen_by(chooser)], [c for c in chosen if _row(c) == (n, method, chooser)])
            for n, method, chooser in sorted(dict.fromkeys(keys), key=lambda key: key[0])
        ]
        parts.append(_differences(head, lines, chosen, intervals))
    if turns:
        lines = [([m], [c for c in turns if c.method == m]) for m in dict.fromkeys(c.method for c in turns)]
        parts.append(_differences(["method"], lines, turns, intervals))
    tested = sum(c.p is not None for c in found)
    single = any(1 in (c.seeds, c.baseline_seeds) for c in found)
    note = (
        f"Each figure minus that of {whose} in the same column{' and for the same N' if chosen else ''}, on "
        "the same problems. "
        f"{'Intervals (95 %) and p' if intervals else 'p'}, two-sided, by Student's t (Welch): the squared "
        "error is the variance over bootstrap draws of the problems, which are paired, and each method's "
        "variance over training seeds divided by their number. "
        + ("A method with one seed tells nothing of how training varies. " if single else "")
        + f"Bold: p < .05 after Holm's correction for the {tested} comparisons of these tables; the first p "
        f"is not corrected, and about {0.05 * tested:.1f} of so many would be below .05 without any "
        "difference. The intervals are not corrected."
    )
    return [*parts, note]


def _differences(
    head: Sequence[str],
    lines: Sequence[tuple[Sequence[str], Sequence[RowComparison]]],
    found: Sequence[RowComparison],
    intervals: bool,
) -> str:
    columns = list(dict.fromkeys((c.benchmark, c.place.category, c.place.figure) for c in found))
    body = []
    for words, own in lines:
        cells = {(c.benchmark, c.place.category, c.place.figure): _difference(c, intervals) for c in own}
        body.append([*words, *(cells.get(column, "–") for column in columns)])
    return grid([*head, *(_heading(column[0] or "mean", *column[1:]) for column in columns)], body, len(head))


def _difference(found: RowComparison, intervals: bool) -> str:
    """``+2.1 [0.3, 4.0] p .023, Holm .21``; without a test where nothing varies."""
    text = f"{100 * found.difference:+.1f}"
    if intervals and found.interval:
        text += f" [{100 * found.interval[0]:+.1f}, {100 * found.interval[1]:+.1f}]"
    if found.p is None or found.p_holm is None:
        return text.replace("-", "−")
    text = f"{text} p {_probability(found.p)}, Holm {_probability(found.p_holm)}".replace("-", "−")
    return f"**{text}**" if found.p_holm < 0.05 else text


def _probability(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _row(of: RowComparison) -> tuple[int, str, str]:
    return of.place.n, of.method, of.place.chooser


def _chosen_by(chooser: str) -> str:
    return "–" if chooser == "first" else STRATEGIES[chooser].label


def _by_size(figures: Sequence[Figure], intervals: bool) -> str:
    columns = list(dict.fromkeys((f.benchmark, f.place.category, f.place.figure) for f in figures))
    columns = sorted(columns, key=lambda c: (_first(figures, c[0]), c[1] == ALL))
    head = ["N", "method", "chosen by", *(_heading(*column) for column in columns)]
    body = []
    for n in sorted({f.place.n for f in figures}):
        here = [f for f in figures if f.place.n == n]
        for method, chooser in dict.fromkeys((f.method, f.place.chooser) for f in here):
            cells = [
                _cell(
                    here, [f for f in here if f.method == method and f.place.chooser == chooser], c, intervals
                )
                for c in columns
            ]
            body.append([str(n), method, _chosen_by(chooser), *cells])
    return grid(head, body, 3)


def _plain(figures: Sequence[Figure], intervals: bool) -> str:
    columns = list(dict.fromkeys((f.benchmark, f.place.category, f.place.figure) for f in figures))
    body = [
        [method, *(_cell(figures, [f for f in figures if f.method == method], c, intervals) for c in columns)]
        for method in dict.fromkeys(f.method for f in figures)
    ]
    return grid(["method", *(_heading(*column) for column in columns)], body)


def _first(figures: Sequence[Figure], benchmark: str) -> int:
    return next(place for place, f in enumerate(figures) if f.benchmark == benchmark)


def _heading(benchmark: str, category: str, figure: str) -> str:
    shown = "" if category == ALL else category.partition(": ")[2]
    return " ".join(filter(None, (benchmark, shown, LABELS.get(figure, figure))))


def _cell(
    rivals: Sequence[Figure], own: Sequence[Figure], column: tuple[str, str, str], intervals: bool
) -> str:
    """A figure, bold where none in the column looks better; a dash where there is none."""

    def inside(figures: Sequence[Figure]) -> list[Figure]:
        return [f for f in figures if (f.benchmark, f.place.category, f.place.figure) == column]

    found = next(iter(inside(own)), None)
    if found is None:
        return "–"
    sign = "+" if column[2] in _SIGNED else ""

    def write(value: float) -> str:
        return f"{100 * value:{sign}.1f}".replace("-", "−")

    text = write(found.value)
    best = max(round(f.value, 3) for f in inside(rivals))
    if column[2] not in _NOT_BETTER and round(found.value, 3) == best and len(inside(rivals)) > 1:
        text = f"**{text}**"
    if intervals and found.interval:
        text += f" [{write(found.interval[0])}, {write(found.interval[1])}]"
    return text


class TablesSettings(CommandConfig):
    """What the tables show."""

    sizes: str = "1,4,8,12"
    """The numbers of samples to choose from, with commas between them."""

    by: str = "majority,best"
    """The strategies that choose (majority, best, weighted, best-of-majority, oracle), in order."""

    score: Literal["soft", "sampled", "greedy"] = "soft"
    """The reading of a model's own score that strategies use."""

    category: list[str] = []
    """A category of problems whose values become columns, such as `discipline`; repeatable."""

    against: str | None = None
    """The row that the others are compared with, as METHOD or METHOD:STRATEGY: differences with intervals and
    p-values, paired over problems."""

    intervals: bool = True
    """Show 95 % intervals."""

    output: Path | None = None
    """A file for the tables, in Markdown."""


@settings_as_options
def tables(
    rows: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD:BENCHMARK=FOLDER...", help="Runs or evaluations, or studies' folders."
        ),
    ],
    settings: TablesSettings,
    as_json: Json = False,
) -> None:
    """Print methods x benchmarks from stored samples, in the layout of ADPO's Tables 2-4 and AdaPO's Table 1.

    Nothing is sampled. Samples of one turn give figures for each number of samples, samples of two turns give
    acc@t1, acc@t2 and their difference, and the mean over benchmarks (AdaPO's Fig. 5). A method that comes
    several times for one benchmark has several training seeds.

    Examples:

    - `python -m reproduce.adpo base:mathvista=evals/base grpo:mathvista=runs/grpo
      adpo:mathvista=runs/adpo@after`

    - `python -m reproduce.adpo grpo:mathvista=runs/grpo adpo:mathvista=runs/adpo --against grpo:majority`

    - `python -m reproduce.adpo runs/adapo-digits --output table-1.md --against before`
    """
    counts = sizes_of(settings.sizes)
    strategies = [name.strip() for name in settings.by.split(",") if name.strip()]
    if not strategies:
        raise ConfigError("--by names no strategy")
    found = paper_tables(
        run_sources(rows),
        sizes=counts,
        strategies=strategies,
        score=settings.score,
        categories=settings.category,
        against=settings.against,
    )
    text = markdown(found, settings.intervals)
    if settings.output is not None:
        write_text(settings.output, text)
    if as_json:
        print_json(found.as_json(), indent=None)
    else:
        typer.echo(text, nl=False)


app = script(tables)


if __name__ == "__main__":
    app()
