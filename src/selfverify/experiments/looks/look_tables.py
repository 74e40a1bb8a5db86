"""VTS-V's Tables 1 to 3 of one's own models, with the paper's figures beside them on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular
from selfverify.experiments.looks.bench import BENCH
from selfverify.experiments.looks.bench_row import MARKED, WITH, BenchRow
from selfverify.experiments.looks.published_vts_v import (
    BLINK,
    CITED,
    GENERAL,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    PublishedLooks,
)
from selfverify.experiments.markdown_tables import grid

NAMED = {WITH: " + VTS-V", MARKED: " + SoM"}
"""What the paper calls ways of answering, behind the model's name."""


@dataclass(frozen=True, slots=True)
class Benched:
    """What `bench` has written into a folder.

    Args:
        data: The benchmark's path.
        model: The model's.
        rows: Without and with looking.
    """

    data: str
    model: str
    rows: list[BenchRow]


def look_tables(named: Sequence[tuple[str, Path]], paper: bool = False) -> str:
    """The tables in Markdown, in percent.

    Args:
        named: Models by name, each with a folder of `bench`; a model that has answered several benchmarks
            comes several times.
        paper: Whether the paper's rows stand there, too.

    Raises:
        ConfigError: A folder has no such file, or holds a benchmark of neither table.
        DataError: The file is damaged.
    """
    first: list[PublishedLooks] = []
    second: dict[str, dict[str, float]] = {}
    for name, folder in named:
        benched = read_bench(folder)
        benchmark = benchmark_of(benched)
        if benchmark is None:
            known = ", ".join(["BLINK", *GENERAL.values()])
            raise ConfigError(f"{folder}: {benched.data} is none of the paper's benchmarks: {known}")
        for row in benched.rows:
            model = name + NAMED.get(row.name, "")
            if benchmark == "blink":
                values = tuple(_percent(row.tasks.get(task)) for task in BLINK)
                first.append(PublishedLooks(model, values, _percent(row.mean)))
            else:
                second.setdefault(model, {})[benchmark] = 100 * row.accuracy
    parts = []
    if first or paper:
        rows = [*first, *(_cited(TABLE_1) if paper else ())]
        parts.append(_titled("Table 1: BLINK", ["model", *BLINK.values(), "Avg"], rows))
    if second or paper:
        ours = [
            PublishedLooks(model, tuple(found.get(name) for name in GENERAL))
            for model, found in second.items()
        ]
        rows = [*ours, *(_cited(TABLE_2) if paper else ())]
        parts.append(_titled("Table 2: general benchmarks", ["model", *GENERAL.values()], rows, mean=False))
    if paper:
        body = [
            PublishedLooks(f"{kind} [{CITED}]", tuple(pair[number] for pair in TABLE_3.values()))
            for number, kind in enumerate(("full", "w/o verifier"))
        ]
        title = "Table 3: the verifier's part (it seems to be BLINK's Visual Correspondence alone)"
        parts.append(_titled(title, ["", *TABLE_3], body, mean=False))
    return "\n\n".join(parts) + "\n"


def read_bench(folder: Path) -> Benched:
    """What `bench` has written into a folder.

    Raises:
        ConfigError: There is no such file.
        DataError: It is damaged.
    """
    path = folder / BENCH
    if not path.is_file():
        raise ConfigError(f"{folder} has no {BENCH}; `selfverify visual bench --output {folder}` writes it")
    try:
        return TypeAdapter(Benched).validate_json(read_regular(path))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise DataError(f"{path}: {f'{place}: ' if place else ''}{fault['msg']}") from None


def benchmark_of(benched: Benched) -> str | None:
    """Which of the paper's benchmarks was answered, by its tasks or its path; None for another one."""
    if any(task in BLINK for row in benched.rows for task in row.tasks):
        return "blink"
    plain = "".join(letter for letter in Path(benched.data).name.lower() if letter.isalnum())
    return next((name for name in GENERAL if name in plain), None)


def _cited(rows: Iterable[PublishedLooks]) -> list[PublishedLooks]:
    return [row._replace(model=f"{row.model} [{CITED}]") for row in rows]


def _titled(title: str, head: Sequence[str], rows: Sequence[PublishedLooks], mean: bool = True) -> str:
    body = [[row.model, *map(_cell, row.values), *([_cell(row.mean)] if mean else [])] for row in rows]
    return f"{title}\n\n{grid(head, body)}"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
