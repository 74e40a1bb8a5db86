"""VTS-V's Tables 1 to 3 of one's own models, with the paper's figures beside them on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field, TypeAdapter, ValidationError

from reproduce import published
from reproduce.bench import BENCH, MARKED, WITH, BenchRow, BenchSettings, run_bench
from reproduce.published import PublishedLooks
from reproduce.scripts import script
from reproduce.tables import grid
from selfverify.cli.options import Json, figure, print_json, print_table, say, settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular, write_text
from selfverify.tasks.row_task import DataFile
from selfverify.visual.config import VisualConfig

NAMED = {WITH: " + VTS-V", MARKED: " + SoM"}
"""What the paper calls ways of answering, behind the model's name."""


PAPER = published.vts_v()
"""What the authors report."""


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
            known = ", ".join(["BLINK", *PAPER.general.values()])
            raise ConfigError(f"{folder}: {benched.data} is none of the paper's benchmarks: {known}")
        for row in benched.rows:
            model = name + NAMED.get(row.name, "")
            if benchmark == "blink":
                values = tuple(_percent(row.tasks.get(task)) for task in PAPER.blink)
                first.append(PublishedLooks(model, values, _percent(row.mean)))
            else:
                second.setdefault(model, {})[benchmark] = 100 * row.accuracy
    parts = []
    if first or paper:
        rows = [*first, *(_cited(PAPER.table_1) if paper else ())]
        parts.append(_titled("Table 1: BLINK", ["model", *PAPER.blink.values(), "Avg"], rows))
    if second or paper:
        ours = [
            PublishedLooks(model, tuple(found.get(name) for name in PAPER.general))
            for model, found in second.items()
        ]
        rows = [*ours, *(_cited(PAPER.table_2) if paper else ())]
        parts.append(
            _titled("Table 2: general benchmarks", ["model", *PAPER.general.values()], rows, mean=False)
        )
    if paper:
        body = [
            PublishedLooks(f"{kind} [{PAPER.cited}]", tuple(pair[number] for pair in PAPER.table_3.values()))
            for number, kind in enumerate(("full", "w/o verifier"))
        ]
        title = "Table 3: the verifier's part (it seems to be BLINK's Visual Correspondence alone)"
        parts.append(_titled(title, ["", *PAPER.table_3], body, mean=False))
    return "\n\n".join(parts) + "\n"


def read_bench(folder: Path) -> Benched:
    """What `bench` has written into a folder.

    Raises:
        ConfigError: There is no such file.
        DataError: It is damaged.
    """
    path = folder / BENCH
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {BENCH}; `python -m reproduce.vts_v bench --output {folder}` writes it"
        )
    try:
        return TypeAdapter(Benched).validate_json(read_regular(path))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise DataError(f"{path}: {f'{place}: ' if place else ''}{fault['msg']}") from None


def benchmark_of(benched: Benched) -> str | None:
    """Which of the paper's benchmarks was answered, by its tasks or its path; None for another one."""
    if any(task in PAPER.blink for row in benched.rows for task in row.tasks):
        return "blink"
    plain = "".join(letter for letter in Path(benched.data).name.lower() if letter.isalnum())
    return next((name for name in PAPER.general if name in plain), None)


def _cited(rows: Iterable[PublishedLooks]) -> list[PublishedLooks]:
    return [row._replace(model=f"{row.model} [{PAPER.cited}]") for row in rows]


def _titled(title: str, head: Sequence[str], rows: Sequence[PublishedLooks], mean: bool = True) -> str:
    body = [[row.model, *map(_cell, row.values), *([_cell(row.mean)] if mean else [])] for row in rows]
    return f"{title}\n\n{grid(head, body)}"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


class BenchCommandSettings(CommandConfig):
    """Which benchmark, by whom, and how it is answered."""

    model: str = "builtin:digits"
    """The model: a folder, `builtin:NAME` or a hub id; with --server its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    timeout: float = Field(300.0, ge=0.1)
    """With --server: seconds that one answer may take."""

    output: Path = Path("runs/bench")
    """The folder for samples and figures."""

    format: str | None = None
    """The file's format, if it is not recognised (`vstar`, ...)."""

    split: str | None = None
    """The split to read, where there are several (BLINK: val)."""

    problems: int | None = Field(None, ge=1)
    """The first questions only."""

    samples: int = Field(1, ge=1)
    """Answers to each question."""

    temperature: float = Field(0.0, ge=0.0)
    """The sampling temperature; 0 is greedy."""

    max_tokens: int = Field(512, ge=1)
    """The most tokens of a turn."""

    device: str = "auto"
    """Where the model runs."""

    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """The precision of its weights."""

    marks: bool = False
    """Answer also with numbers on the parts of images (Set-of-Mark), without looking."""

    look: VisualConfig


@settings_as_options
def bench(
    data: Annotated[Path, typer.Argument(help="The benchmark's file or folder, as it was published.")],
    settings: BenchCommandSettings,
    as_json: Json = False,
) -> None:
    """Answer a benchmark's questions without and with looking, and compare both task by task.

    BLINK, V*, MMStar, MathVista and HR-Bench are read as they were published, and whatever else the task
    `math` reads. Called again, the command goes on where it was stopped.

    Examples:

    - `python -m reproduce.vts_v bench data/BLINK --split val --model Qwen/Qwen2.5-VL-7B-Instruct`

    - `python -m reproduce.vts_v bench data/vstar_bench --format vstar --model FOLDER --max-steps 4 --marks`

    - `python -m reproduce.vts_v bench data/BLINK --split val --server http://127.0.0.1:8000
      --model Qwen/Qwen2.5-VL-72B-Instruct`
    """
    how = BenchSettings(
        DataFile(path=str(data), format=settings.format, split=settings.split),
        settings.model,
        settings.look,
        settings.problems,
        settings.max_tokens,
        settings.temperature,
        settings.samples,
        settings.device,
        settings.dtype,
        settings.marks,
        settings.server,
        settings.timeout,
    )
    rows = run_bench(how, settings.output)
    if lost := sum(row.lost for row in rows):
        say(f"{lost} conversations broke off, which count as wrong; the log says why", "yellow")
    if as_json:
        print_json([asdict(row) for row in rows], indent=None)
        return
    tasks = list(dict.fromkeys(task for row in rows for task in row.tasks))
    columns = [*tasks, "mean of tasks", "all", "steps", "crop hit"]
    cells = [
        [
            *(figure(row.tasks.get(task), ".4f") for task in tasks),
            figure(row.mean, ".4f"), figure(row.accuracy, ".4f"),
            figure(row.steps, ".2f"), figure(row.crop_hit, ".4f"),
        ]
        for row in rows
    ]  # fmt: skip
    table = [(column, *(row[place] for row in cells)) for place, column in enumerate(columns)]
    print_table(("", *(row.name for row in rows)), table, f"{data.name}: {rows[0].problems} questions")


def tables(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=FOLDER]...", help="Models by name, each with a folder of `bench`."),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print the paper's figures, too.")] = False,
    output: Annotated[Path | None, typer.Option(help="A file for the tables, in Markdown.")] = None,
) -> None:
    """Print VTS-V's Tables 1 and 2 of models that have answered benchmarks without and with looking.

    A model comes once for each benchmark: BLINK, V*, MMStar, MathVista. With --paper its rows stand below,
    and its Table 3.

    Examples:

    - `python -m reproduce.vts_v tables mine=runs/bench-blink mine=runs/bench-vstar --paper`
    """

    named = [part.partition("=") for part in models or []]
    if (not named and not paper) or not all(name and folder for name, _, folder in named):
        raise ConfigError("name models as NAME=FOLDER, or ask for the paper's figures with --paper")
    text = look_tables([(name, Path(folder)) for name, _, folder in named], paper)
    if output is not None:
        write_text(output, text)
    typer.echo(text, nl=False)


app = script(
    bench, tables, about="VTS-V's Tables 1 to 3 of our own models, and the benchmarks that they are about."
)


if __name__ == "__main__":
    app()
