"""The command ``selfverify study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from selfverify.cli.options import settings_as_options
from selfverify.cli.printing import say
from selfverify.core.settings import Settings


class StudySettings(Settings):
    """How a study is run."""

    output: Path | None = None
    """The folder of the study. By default `runs/NAME`."""

    seeds: str | None = None
    """The seeds to use instead of the file's, such as `0,1,2`."""

    jobs: int = Field(1, ge=1)
    """The number of runs at the same time; they share the cores."""

    only: list[str] = []
    """Run only this variant; repeat it for several."""

    report_only: bool = False
    """Run nothing; write the tables of the finished runs."""


@settings_as_options
def study(
    file: Annotated[str, typer.Argument(help="A study's YAML file, or a built-in study's name.")],
    settings: StudySettings,
) -> None:
    """Compare variants of a recipe, on several tasks and seeds, in tables and figures.

    Called again, the command goes on where it was stopped: finished runs are skipped, unfinished ones
    resumed.

    Examples:

    - `selfverify study study-adpo-digits --jobs 2`

    - `selfverify study my-study.yaml --only grpo --only adpo --seeds 0`
    """
    from selfverify.experiments.study.runner import run_study
    from selfverify.experiments.study.study_file import load_study

    loaded = load_study(file, settings.seeds)
    done = run_study(loaded, settings.output, settings.jobs, settings.only, settings.report_only, typer.echo)
    for failure in done.failures:
        say(f"{failure.label}: {failure.reason}, see {failure.log}", "bold red", "failed: ")
    if done.results:
        typer.echo(f"results: {done.results}, tables: {done.folder / 'table.md'}")
    if done.failures or not done.results:
        raise typer.Exit(1)
