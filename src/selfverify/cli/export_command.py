"""The command ``selfverify export``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Json, settings_as_options
from selfverify.cli.printing import bar, print_json, say
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError


class ExportConfig(CommandConfig):
    """What is exported, in which form, and where to."""

    format: Literal["atif", "verl"] = "atif"
    """The form of the files: the Agent Trajectory Interchange Format (1.8), a file each; or verl's `messages`
    and `tools` for fine-tuning, one file (.parquet or .jsonl)."""

    keep: Literal["all", "correct", "judged"] = "all"
    """With --format verl: which samples; all, right ones, or those that judges found a success."""

    rollouts: bool = False
    """Export the logged rollouts of a run's training, with their tokens, not its samples."""

    problems: int | None = Field(None, ge=1)
    """The number of problems, the first ones; by default all."""

    only: list[str] = []
    """The id of a problem to export; may be repeated."""

    limit: int | None = Field(None, ge=1)
    """The most trajectories that are exported; by default all."""


@settings_as_options
def export(
    source: Annotated[
        Path, typer.Argument(help="The folder of a run or of an evaluation, or a `samples.jsonl`.")
    ],
    output: Annotated[
        Path, typer.Option(help="The folder for the trajectories and their images; of verl's form the file.")
    ],
    settings: ExportConfig,
    as_json: Json = False,
) -> None:
    """Write stored samples as trajectories that other programs read, with their images as files.

    Of a run, the samples of after training are exported. Called again, the command goes on where it was
    stopped.

    Examples:

    - `selfverify export runs/agent/eval --output trajectories`

    - `selfverify export runs/agent/samples-before.jsonl --output before --problems 20`

    - `selfverify export runs/agent --rollouts --output rollouts --limit 100`

    - `selfverify export runs/agent --format verl --keep correct --output own-successes.parquet`
    """
    if settings.format == "verl":
        _export_conversations(source, output, settings, as_json)
        return
    if settings.keep != "all":
        raise ConfigError("--keep goes with --format verl")
    from selfverify.experiments.export import Portion, export_atif

    portion = Portion(settings.problems, settings.limit, tuple(settings.only))
    with bar("trajectories", hidden=as_json) as progress:
        done = export_atif(source, output, portion, settings.rollouts, progress)
    if as_json:
        print_json(asdict(done), indent=None)
        return
    typer.echo(f"{done.trajectories} trajectories ({done.new} new), {done.images} images: {output}")
    if done.unknown:
        problem, reason = next(iter(done.unknown.items()))
        say(f"{len(done.unknown)} problems are without their questions; {problem}: {reason}", "yellow")


def _export_conversations(source: Path, output: Path, settings: ExportConfig, as_json: bool) -> None:
    """Write one file of conversations for fine-tuning."""
    from selfverify.evaluation.samples import find_store
    from selfverify.experiments.export import export_conversations

    if settings.rollouts or settings.only:
        raise ConfigError("--format verl exports stored samples: --rollouts and --only do not go with it")
    done = export_conversations(find_store(source), output, settings.keep, settings.problems, settings.limit)
    if as_json:
        print_json(asdict(done), indent=None)
        return
    typer.echo(f"{done.conversations} conversations: {output}")
    for reason, count in done.left_out.items():
        say(f"{count} samples are left out: {reason}", "yellow")
