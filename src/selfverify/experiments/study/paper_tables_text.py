"""ADPO's Tables 2 to 4 and AdaPO's Table 1 and Fig. 5 of our own runs, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.evaluation.by_size import ALL, LABELS, TURNS
from selfverify.experiments.markdown_tables import grid
from selfverify.experiments.study.paper_tables import Figure, PaperTables
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
    every = "95 % intervals: bootstrap over problems" if intervals else "Without intervals"
    several = any(f.seeds > 1 for f in tables.figures)
    parts.append(f"{every}{', and over training seeds' if several and intervals else ''}. Best in bold.")
    return "\n\n".join([*parts, *(f"- {note}" for note in tables.notes)]) + "\n"


def _by_size(figures: Sequence[Figure], intervals: bool) -> str:
    columns = list(dict.fromkeys((f.benchmark, f.place.category, f.place.figure) for f in figures))
    columns = sorted(columns, key=lambda c: (_first(figures, c[0]), c[1] == ALL))
    head = ["N", "method", "chosen by", *(_heading(*column) for column in columns)]
    body = []
    for n in sorted({f.place.n for f in figures}):
        here = [f for f in figures if f.place.n == n]
        for method, chooser in dict.fromkeys((f.method, f.place.chooser) for f in here):
            by = "–" if chooser == "first" else STRATEGIES[chooser].label
            cells = [
                _cell(
                    here, [f for f in here if f.method == method and f.place.chooser == chooser], c, intervals
                )
                for c in columns
            ]
            body.append([str(n), method, by, *cells])
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
