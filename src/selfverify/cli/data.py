"""The commands about data files, `selfverify data ...`, and the command ``selfverify export``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Json, Overrides, bar, print_json, print_outcome, settings_as_options
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.experiments.command_config import CheckConfig

if TYPE_CHECKING:
    from selfverify.experiments.visual_sets import Target

app = typer.Typer(no_args_is_help=True, help="Check data files, and filter them.")


@app.command()
@settings_as_options
def check(settings: CheckConfig, as_json: Json = False) -> None:
    """Read a data file once, images included, and say what is in it and what is broken.

    The exit status is 1 if anything is broken.

    Examples:

    - `selfverify data check geometry.jsonl`

    - `selfverify data check MathVista_MINI.tsv --model Qwen/Qwen2.5-VL-7B-Instruct --json`

    - `selfverify data check refcoco_train.json --images coco --limit 1000`
    """
    from selfverify.core.policy_config import PolicyConfig
    from selfverify.data.rows import open_rows
    from selfverify.experiments.data_check import check_rows, summary

    rows = open_rows(**settings.model_dump(exclude={"model", "max_pixels", "samples"}), note_bad=False)
    model = PolicyConfig(path=settings.model, device="cpu", max_pixels=settings.max_pixels)
    checked = check_rows(rows, model, samples=settings.samples)
    if as_json:
        print_json(asdict(checked))
    else:
        for line in summary(checked):
            typer.echo(line)
    if checked.broken:
        raise typer.Exit(1)


class FilterConfig(Config):
    """The problems that are filtered, and the number of samples."""

    recipe: str = Field(json_schema_extra={"argument": True})
    """A recipe, of which the task, the policy, the method and the sampling are used."""

    output: Path = Path("kept.jsonl")
    """The file for the verdicts."""

    problems: int | None = Field(None, ge=1)
    """The number of problems to judge; by default all of the data file."""

    samples: int | None = Field(None, ge=1)
    """The number of samples per problem; by default the recipe's group size."""


@app.command(name="filter")
@settings_as_options
def filter_(settings: FilterConfig, overrides: Overrides = None, as_json: Json = False) -> None:
    """Sample answers to every training problem, and drop problems that are always or never solved.

    Such a problem teaches the policy nothing. With a two-turn method, a problem is dropped if its answers are
    all right before and after the second turn, or all wrong. Called again, the command goes on where it was
    stopped. `learner.keep=FILE` trains on what is kept. `policy.path=URL#MODEL` lets a model behind a server
    answer, such as the policy in vLLM.

    Examples:

    - `selfverify data filter adpo-digits --problems 256 --output kept.jsonl`

    - `selfverify data filter adpo-math task.train=my/train.jsonl --samples 8`

    - `selfverify data filter adapo-digits policy.path=builtin:digits --problems 32 --output two.jsonl`
    """
    from selfverify.core import ranks
    from selfverify.experiments.data_filter import Filter, summary
    from selfverify.experiments.recipe import load_recipe

    loaded = load_recipe(settings.recipe, overrides or [])
    with bar("problems", hidden=as_json) as progress:
        verdicts = Filter.of(loaded, settings.samples).run(settings.output, settings.problems, progress)
    if not ranks.stop():
        return
    if as_json:
        print_json([asdict(verdict) for verdict in verdicts], indent=1)
        return
    for line in summary(verdicts):
        typer.echo(line)
    typer.echo(f"verdicts: {settings.output}; train on what is kept with learner.keep={settings.output}")


class ExportConfig(Config):
    """The conversations that are exported, their form, and the output."""

    source: Path = Field(json_schema_extra={"argument": True})
    """The folder of a run, of an evaluation or of `visual sets`, or a `samples.jsonl`."""

    output: Path
    """The folder for the trajectories and their images; of verl's form the file."""

    format: Literal["atif", "verl", "llama-factory", "ms-swift", "trl"] = "atif"
    """The form of the files: the Agent Trajectory Interchange Format (1.8), a file each; verl's `messages`
    and `tools` for fine-tuning, one file (.parquet or .jsonl); or, of a folder of `visual sets`, the traces
    and pairs as LLaMA-Factory, ms-swift or TRL read them, with all images."""

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
def export(settings: ExportConfig, as_json: Json = False) -> None:
    """Write stored samples as trajectories that other programs read, with their images as files.

    Of a run, the samples of after training are exported.

    Examples:

    - `selfverify export runs/agent/eval --output trajectories`

    - `selfverify export runs/agent/samples-before.jsonl --output before --problems 20`

    - `selfverify export runs/agent --rollouts --output rollouts --limit 100`

    - `selfverify export runs/agent --format verl --keep correct --output own-successes.parquet`

    - `selfverify export looks --format ms-swift --output data/looks`
    """
    if settings.format == "verl":
        _export_conversations(settings, as_json)
        return
    if settings.format != "atif":
        _export_looks(settings, settings.format, as_json)
        return
    if settings.keep != "all":
        raise ConfigError("--keep goes with --format verl")
    from selfverify.experiments.export import Portion, export_atif

    portion = Portion(settings.problems, settings.limit, tuple(settings.only))
    with bar("trajectories", hidden=as_json) as progress:
        done = export_atif(settings.source, settings.output, portion, settings.rollouts, progress)
    text = f"{done.trajectories} trajectories, {done.images} images: {settings.output}"
    first = next((f"; {problem}: {reason}" for problem, reason in done.unknown.items()), "")
    without = f"{len(done.unknown)} problems are without their questions{first}" if first else ""
    print_outcome(done, as_json, text, without)


def _export_conversations(settings: ExportConfig, as_json: bool) -> None:
    """Write one file of conversations for fine-tuning."""
    from selfverify.evaluation.samples import find_store
    from selfverify.experiments.export import export_conversations

    if settings.rollouts or settings.only:
        raise ConfigError("--format verl exports stored samples: --rollouts and --only do not go with it")
    part, output = (settings.keep, settings.problems, settings.limit), settings.output
    done = export_conversations(find_store(settings.source), output, *part)
    left = (f"{count} samples are left out: {reason}" for reason, count in done.left_out.items())
    print_outcome(done, as_json, f"{done.conversations} conversations: {output}", "\n".join(left))


def _export_looks(settings: ExportConfig, target: Target, as_json: bool) -> None:
    """Write traces and pairs of looking again for another trainer."""
    from selfverify.experiments.visual_sets import export_looks

    if settings.model_dump(exclude={"format", "source", "output"}, exclude_defaults=True):
        raise ConfigError(f"--format {target} exports all traces and pairs; other options do not go with it")
    output = settings.output
    traces, pairs, images = export_looks(settings.source, output, target)
    done = {"traces": traces, "pairs": pairs, "images": images}
    print_outcome(done, as_json, f"{traces} traces, {pairs} pairs, {images} images: {output}")
