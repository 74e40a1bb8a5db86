"""Tables in Markdown: rows of figures with their intervals, and of differences that were tested.

`published` has the figures that papers report (`published/*.json`); `beside` draws them with ours.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reproduce.statistics import BySeed, holm, pooled
from selfverify.core.errors import ConfigError


@cache
def published(paper: str) -> dict[str, Any]:
    """Return the figures of a paper, as its file has them; ``about`` says what they are.

    ``cited`` says whose they are, ``digits`` with how many decimals they are printed, and ``tables`` has by
    the paper's number of a table:

    - ``title``;
    - ``head``: the headings of the words that a row begins with;
    - ``columns``: the headings of its figures, by the keys that our own figures have;
    - ``rows``: lists of those words and of figures as they are printed, null where there is none.
    """
    file = Path(__file__).parent / "published" / f"{paper}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


Labels = tuple[str, ...]
"""The words that a row begins with."""
Rows = Mapping[Any, Mapping[Any, Mapping[str, Any]]]
"""Figures as `reproduce.statistics` returns them, by a row's words and a column's key."""

TESTED = (
    "on the same problems and seeds [95 % interval], by Student's t of crossed random effects: of the "
    "problems, which are paired, and of each side's seeds. Bold where p < .05 after Holm's correction for "
    "the {count} comparisons of the table; with one seed a test is about that trained model."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        key: The figure.
        title: The column's heading.
        percent: Whether it is shown as a percentage.
        better: Whether more is better or worse. If neither, intervals and differences are not shown.
        bold: Whether the highest value is printed bold.
        signed: Whether the value is a difference and shown with its sign.
        seeds: Whether the standard deviation over seeds is shown.
        digits: The decimals of a percentage.
    """

    key: Hashable
    title: str
    percent: bool = True
    better: bool = True
    bold: bool = True
    signed: bool = False
    seeds: bool = False
    digits: int = 1

    @property
    def heading(self) -> str:
        """The title with its unit, unless it has one: what is published may be seconds."""
        return f"{self.title} (%)" if self.percent and not self.title.endswith(")") else self.title


def published_rows(paper: str, number: str) -> dict[Labels, dict[str, dict[str, Any]]]:
    """Return the rows of a paper's table as `figure_table` takes them: percents as shares, as ours are.

    The first word of a row says whose it is.
    """
    table, cited = published(paper)["tables"][number], published(paper)["cited"]
    words = len(table["head"])
    return {
        (f"{row[0]} [{cited}]", *row[1:words]): {
            key: {"mean": None if value is None else value / 100, "interval": None}
            for key, value in zip(table["columns"], row[words:], strict=True)
        }
        for row in table["rows"]
    }


def beside(paper: str, ours: Rows, cited: bool = True, numbers: Collection[str] = ()) -> list[str]:
    """Return titles and texts of a paper's tables: our rows without their intervals, and below them its own.

    Args:
        paper: The name of its file.
        ours: Our figures by the keys of the tables' columns. A row stands in each table that has one of its
            figures; without any row a table is left out.
        cited: Whether the paper's rows stand there, too.
        numbers: The tables' numbers; none are all.

    Raises:
        ConfigError: The file has no such table.
    """
    tables, digits, parts = published(paper)["tables"], published(paper)["digits"], list[str]()
    if unknown := [number for number in numbers if number not in tables]:
        raise ConfigError(f"there is no published Table {unknown[0]} here; tables: {', '.join(tables)}")
    for number in numbers or tables:
        table = tables[number]
        rows = {words: row for words, row in ours.items() if row.keys() & table["columns"].keys()}
        rows |= published_rows(paper, number) if cited else {}
        columns = [
            Column(key, title, better=False, signed=title.endswith("Δ"), digits=digits)
            for key, title in table["columns"].items()
        ]
        if rows:
            parts += [f"## Table {number}: {table['title']}", figure_table(table["head"], rows, columns)]
    return parts


def of_one_sample(metrics: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A figure of an evaluation's ``metrics`` for single samples, as `figure_table` takes it."""
    of = metrics.get(name) or {}
    curve = of.get("curves", {}).get("pass@1") or [None]
    return {"mean": curve[-1], "interval": of.get("intervals", {}).get("pass@1")}


def plain(name: str) -> str:
    """Its letters and digits, so that GUI-Odyssey and gui_odyssey are one benchmark."""
    return "".join(filter(str.isalnum, name.lower()))


def figure_table(head: Sequence[str], rows: Rows, columns: Sequence[Column]) -> str:
    """A table of figures; those that look highest are bold, and what is not known is a dash."""
    body = []
    for labels, row in rows.items():
        cells = [cell(row.get(column.key), "mean", column) for column in columns]
        best = [labels in _best(rows, column) for column in columns]
        body.append([*labels, *(f"**{c}**" if bold else c for c, bold in zip(cells, best, strict=True))])
    return grid([*head, *(column.heading for column in columns)], body, len(head))


def difference_table(head: Sequence[str], rows: Rows, columns: Sequence[Column]) -> tuple[str, int]:
    """A table of differences, bold where they are sure, and how many of them were tested."""
    columns = [column for column in columns if column.better]
    found = [row.get(column.key) for row in rows.values() for column in columns]
    adjusted = iter(tested := holm([None if figure is None else figure["p"] for figure in found]))
    body = []
    for labels, row in rows.items():
        cells = []
        for column in columns:
            text, p = cell(row.get(column.key), "difference", column), next(adjusted)
            cells.append(text if p is None or p >= 0.05 else f"**{text}**")
        body.append([*labels, *cells])
    text = grid([*head, *(column.heading for column in columns)], body, len(head))
    return text, sum(p is not None for p in tested)


def seed_tables(
    head: Sequence[str],
    measured: Mapping[str, Mapping[Any, BySeed]],
    columns: Callable[[str], Sequence[Column]],
    differences: Mapping[str, Rows],
    other: str,
) -> list[str]:
    """Return paragraphs: by title a table of means over seeds, and one of differences, if asked for.

    Args:
        head: The headings of the words that rows begin with.
        measured: By title and row the figures of each seed.
        columns: The columns of a title.
        differences: By title and row, from `reproduce.statistics.difference`.
        other: The row that the others are compared with.
    """
    parts = []
    for title, rows in measured.items():
        means = {row: pooled(of) for row, of in rows.items()}
        parts += [f"## {title}", figure_table(head, means, columns(title))]
        if title in differences:
            text, count = difference_table(head, differences[title], columns(title))
            parts += [f"Difference from **{other}** {TESTED.format(count=count)}", text]
    return parts


def _best(rows: Rows, column: Column) -> list[Labels]:
    """Return the rows with the highest figure as it is printed; figures that look equal are bold together."""
    if not column.better or not column.bold:
        return []
    known = {labels: (row.get(column.key) or {}).get("mean") for labels, row in rows.items()}
    shown = {labels: round(value, 3) for labels, value in known.items() if value is not None}
    best = max(shown.values(), default=None)
    return [labels for labels, value in shown.items() if value == best and len(shown) > 1]


def cell(figure: Mapping[str, Any] | None, name: str, column: Column) -> str:
    """A figure, or with ``name`` its ``difference``, with its interval and its spread over seeds."""
    if figure is None or figure[name] is None:
        return "–"
    sign = "+" if column.signed or name == "difference" else ""

    def write(value: float) -> str:
        text = f"{value * 100:{sign}.{column.digits}f}" if column.percent else f"{value:{sign}.3f}"
        return text.replace("-", "−")

    interval = figure["interval"] if column.better else None
    spread = f" [{write(interval[0])}, {write(interval[1])}]" if interval else ""
    if column.seeds and figure.get("seed_std") is not None:
        spread += f" ± {figure['seed_std'] * 100:.1f}"
    return write(figure[name]) + spread


def grid(head: Sequence[str], body: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table in Markdown whose first columns, ``texts`` of them, are words."""
    rows = [[cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in (head, *body)]
    rule = [["---"] * texts + ["---:"] * (len(head) - texts)]
    return "\n".join(f"| {' | '.join(line)} |" for line in itertools.chain(rows[:1], rule, rows[1:]))
