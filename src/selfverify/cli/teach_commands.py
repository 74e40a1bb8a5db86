"""The commands that make data for fine-tuning agents: `selfverify agent collect` and `agent reanswer`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Json, Overrides, settings_as_options
from selfverify.cli.printing import bar, print_json, say
from selfverify.core.config import CommandConfig, Seed
from selfverify.experiments.teaching import TeacherConfig


class CollectConfig(CommandConfig):
    """Who teaches, how much, and where to."""

    teacher: TeacherConfig
    output: Path = Path("conversations.parquet")
    """The file, .parquet or .jsonl; OUTPUT.journal beside it keeps all conversations."""

    problems: int = Field(100, ge=1)
    """The number of training problems, at most those that the task has."""

    samples: int = Field(1, ge=1)
    """Conversations about each."""

    keep: Literal["all", "correct", "judged"] = "correct"
    """Which are written: all, right ones, or those that the task's judges found a success."""


@settings_as_options
def collect(
    recipe: Annotated[
        str, typer.Argument(help="A recipe, of which the task, the episode and the seed are used.")
    ],
    settings: CollectConfig,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Let a teacher do a task's training problems, and write its conversations for fine-tuning.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify agent collect smartsnap-phone-qwen3 --expert --problems 1000 --output expert.parquet`

    - `selfverify agent collect smartsnap-qwen3-8b --server http://127.0.0.1:8000
      --model deepseek-ai/DeepSeek-V3.1 --problems 726 --samples 8 --keep judged`
    """
    from selfverify.experiments.recipe import load_recipe
    from selfverify.experiments.teaching import collect as run

    loaded = load_recipe(recipe, overrides or [])
    with bar("problems", hidden=as_json) as progress:
        done = run(
            loaded,
            settings.teacher,
            settings.output,
            settings.problems,
            settings.samples,
            settings.keep,
            progress,
        )
    if as_json:
        print_json(asdict(done), indent=None)
        return
    typer.echo(
        f"{done.conversations} conversations, {done.correct} of them right; {done.written} written: "
        f"{settings.output}"
    )
    if done.lost:
        say(f"{done.lost} were lost; the first one: {done.reason}", "yellow")


class ReanswerConfig(CommandConfig):
    """Who answers, how much, and where to."""

    teacher: TeacherConfig
    output: Path = Path("reanswered.parquet")
    """The file, .parquet or .jsonl; OUTPUT.journal beside it keeps all answers."""

    sample: int | None = Field(None, ge=1)
    """So many turns only, drawn by the seed. By default all."""

    seed: Seed = 0
    """Decides which turns are drawn, and is sent to the server."""


@settings_as_options
def reanswer(
    source: Annotated[Path, typer.Argument(help="A file or folder of conversations.")],
    settings: ReanswerConfig,
    as_json: Json = False,
) -> None:
    """Ask a teacher anew for each turn of existing conversations, and write its answers for fine-tuning.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify agent reanswer android-instruct.parquet --server http://127.0.0.1:8000
      --model Qwen/Qwen3-235B-A22B --sample 100000 --output reanswered.parquet`
    """
    from selfverify.experiments.teaching import reanswer as run

    with bar("turns", hidden=as_json) as progress:
        written, lost, reason = run(
            source, settings.teacher, settings.output, settings.sample, settings.seed, progress
        )
    if as_json:
        print_json({"written": written, "lost": lost, "reason": reason}, indent=None)
        return
    typer.echo(f"{written} turns: {settings.output}")
    if lost:
        say(f"{lost} turns have no answer; the first one: {reason}", "yellow")
