"""The command ``selfverify study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfverify.cli.printing import say


def study(
    file: Annotated[str, typer.Argument(help="A study's YAML file, or a built-in study's name.")],
    output: Annotated[
        Path | None, typer.Option(help="The folder of the study. By default `runs/NAME`.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="The seeds to use instead of the file's, such as `0,1,2`.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="The number of runs at the same time; they share the cores.")
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIANT", help="Run only this variant; repeat it for several."),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write the tables of the finished runs.")
    ] = False,
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

    done = run_study(load_study(file, seeds), output, jobs, only or [], report_only, typer.echo)
    for failure in done.failures:
        say(f"{failure.label}: {failure.reason}, see {failure.log}", "bold red", "failed: ")
    if done.results:
        typer.echo(f"results: {done.results}, tables: {done.folder / 'table.md'}")
    if done.failures or not done.results:
        raise typer.Exit(1)
