"""The command `selfverify looking bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Json, settings_as_options
from selfverify.cli.printing import figure, print_json, print_table
from selfverify.core.settings import Settings
from selfverify.looking.look_settings import LookSettings


class BenchCommandSettings(Settings):
    """Which benchmark, by whom, and how it is answered."""

    model: str = "builtin:digits"
    """The model: a folder, `builtin:NAME` or a hub id."""

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

    - `selfverify looking bench data/vstar_bench --format vstar --model FOLDER --max-steps 4`
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
    )
    rows = benches.bench(how, settings.output)
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
