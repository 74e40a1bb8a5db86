"""The commands `selfverify looking bench` and `selfverify looking tables`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Json, settings_as_options
from selfverify.cli.printing import figure, print_json, print_table, say
from selfverify.core.settings import Settings
from selfverify.looking.look_settings import LookSettings


class BenchCommandSettings(Settings):
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

    look: LookSettings


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

    - `selfverify looking bench data/BLINK --split val --model Qwen/Qwen2.5-VL-7B-Instruct`

    - `selfverify looking bench data/vstar_bench --format vstar --model FOLDER --max-steps 4 --marks`

    - `selfverify looking bench data/BLINK --split val --server http://127.0.0.1:8000
      --model Qwen/Qwen2.5-VL-72B-Instruct`
    """
    from selfverify.experiments.looks import bench as benches
    from selfverify.tasks.data_file import DataFile

    how = benches.BenchSettings(
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
    rows = benches.bench(how, settings.output)
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

    - `selfverify looking tables mine=runs/bench-blink mine=runs/bench-vstar --paper`
    """
    from selfverify.core.atomic_files import write_text
    from selfverify.core.errors import ConfigError
    from selfverify.experiments.looks.look_tables import look_tables

    named = [part.partition("=") for part in models or []]
    if (not named and not paper) or not all(name and folder for name, _, folder in named):
        raise ConfigError("name models as NAME=FOLDER, or ask for the paper's figures with --paper")
    text = look_tables([(name, Path(folder)) for name, _, folder in named], paper)
    if output is not None:
        write_text(output, text)
    typer.echo(text, nl=False)
