"""The commands that train or change models: ``selfverify quickstart``, ``train`` and ``merge``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Overrides, RecipeName, saved_model, say, settings_as_options
from selfverify.core.config import Config, Seed
from selfverify.core.errors import ConfigError, SelfVerifyError

if TYPE_CHECKING:
    from selfverify.experiments.recipe import Recipe


class QuickstartConfig(Config):
    """How the quickstart is run."""

    paper: Literal["adpo", "adapo", "smartsnap", "vts-v"] = Field(
        "adpo", json_schema_extra={"argument": True}
    )
    """What is shown: scores that come to mean something (`adpo`), second turns that correct (`adapo`), an
    agent that proves its work (`smartsnap`), a verifier that ends looking (`vts-v`)."""

    fast: bool = False
    """Train for a minute only, to see that everything runs."""

    seed: Seed = 0
    """The seed of everything random."""

    output: Path | None = None
    """The folder of the run and its report. By default `runs/quickstart`, or `runs/quickstart-PAPER`."""

    overwrite: bool = False
    """Delete the run that the output folder already holds, and start over."""


@settings_as_options
def quickstart(settings: QuickstartConfig) -> None:
    """Train a small model on this machine, and write a report of what it learnt.

    It needs no GPU, no download and no account: the models and their data ship with the package. It takes
    minutes. Called again, it goes on where it was stopped.

    Examples:

    - `selfverify quickstart`

    - `selfverify quickstart adapo`

    - `selfverify quickstart smartsnap --fast --output /tmp/look`
    """
    from selfverify.experiments.quickstart import quickstart as run_quickstart

    report = run_quickstart(settings.paper, settings.output, settings.seed, settings.fast, settings.overwrite)
    typer.echo(f"report: {report}")


class TrainConfig(Config):
    """The handling of files that the output folder holds, and whether to train at all."""

    resume: bool = False
    """Continue from the newest complete checkpoint."""

    overwrite: bool = False
    """Delete the run that the output folder already holds, and start anew."""

    replay: Path | None = None
    """A run's folder: learn from the rollouts it has logged (`learner.checkpoint.rollout_log=all`); sample
    nothing."""

    dry_run: bool = False
    """Check the recipe, print it with all defaults, and say what a step takes: memory of a GPU, tokens,
    operations. No weights are read, and nothing is trained."""

    gpus: int = Field(1, ge=1)
    """With --dry-run: the number of GPUs that share the problems of a step."""

    sharded: bool = False
    """With --dry-run: FSDP shares the model out to the GPUs, too."""

    reply_tokens: int | None = Field(None, ge=1)
    """With --dry-run: the tokens of what an environment says at a time, images included."""


def holds_a_run(folder: Path) -> bool:
    """Return whether training has already written something into ``folder``."""
    metrics = folder / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size > 0:
        return True
    return any(
        any(folder.glob(kept))
        for kept in ("checkpoints/checkpoint-*", "iteration-*", "looks/collected.jsonl")
    )


def dry_run_lines(recipe: Recipe, resume: bool) -> list[str]:
    """Return lines that tell people what ``train`` would do."""
    from selfverify.experiments.recipe import missing_packages
    from selfverify.trainer.checkpoint import CHECKPOINTS_FOLDER, latest_checkpoint

    learner, sampling = recipe.learner, recipe.sampling
    rollouts = learner.steps * learner.groups_per_step
    updates = learner.steps * learner.batch.updates_per_rollout * learner.batch.inner_epochs
    checkpoint = latest_checkpoint(recipe.folder / CHECKPOINTS_FOLDER)
    held = holds_a_run(recipe.folder) and not resume
    lines = [
        f"method {recipe.method.name} on task {recipe.task.name}, from model {recipe.policy.path}",
        f"{learner.steps} steps x {learner.groups_per_step} problems x {sampling.group_size} samples = "
        f"{rollouts * sampling.group_size} trajectories, {updates} updates",
        f"writes to {recipe.output}"
        + (" (already holds a run: needs --resume or --overwrite)" if held else ""),
    ]
    lines += [f"NOT READY: {line}" for line in missing_packages(recipe)]
    if resume:
        lines.append(f"resumes from {checkpoint.name}" if checkpoint else "no checkpoint there: starts anew")
    return lines


def plan_lines(recipe: Recipe, gpus: int, sharded: bool, heard: int | None) -> list[str]:
    """Return lines that tell people what a step takes, or why that cannot be said."""
    from selfverify.experiments.plan import make_plan
    from selfverify.policy.loading import is_at_hand

    if recipe.stopping is not None:
        return ["plan: none, since the run makes its own pairs"]
    try:
        if recipe.engine is not None and (gpus > 1 or sharded or heard):
            return ["plan: none; engine.nodes, engine.gpus_per_node and engine.response_tokens say this"]
        if recipe.engine is not None:
            from selfverify.experiments.plan import engine_lines
            from selfverify.integrations.verl.launch import verl_config

            config, _ = verl_config(recipe)
            return [f"plan: {line}" for line in engine_lines(recipe, recipe.engine, config)]
        if not is_at_hand(recipe.policy.path):
            return [f"plan: none, since {recipe.policy.path} is not on this machine"]
        return [f"plan: {line}" for line in make_plan(recipe, gpus, sharded, heard).lines()]
    except SelfVerifyError as error:
        return [f"plan: none; {' '.join(str(error).split())}"]


@settings_as_options
def train(recipe: RecipeName, settings: TrainConfig, overrides: Overrides = None) -> None:
    """Train a model by a recipe, a file with all settings of a training (see `selfverify recipes`).

    The recipe is checked before anything is loaded; a wrong key is named together with the nearest right one.
    Ctrl-C writes a checkpoint. A run that was killed loses at most the steps since its last checkpoint.

    Examples:

    - `selfverify train quickstart`

    - `selfverify train quickstart learner.optim.learning_rate=5e-5 method.kl=0 name=no-kl`

    - `selfverify train my.yaml --dry-run > resolved.yaml`

    - `selfverify train my.yaml --dry-run --gpus 8 --sharded`

    - `selfverify train runs/no-kl --resume`

    - `selfverify train runs/agent --replay runs/agent output=runs/agent-again`
    """
    from selfverify.experiments.recipe import load_recipe, to_yaml

    loaded = load_recipe(recipe, overrides or [])
    if settings.dry_run:
        planned = plan_lines(loaded, settings.gpus, settings.sharded, settings.reply_tokens)
        for line in [*dry_run_lines(loaded, settings.resume), *planned]:
            typer.echo(f"# {line}")  # comments, so that what is printed is itself a recipe
        typer.echo(to_yaml(loaded), nl=False)
        return
    if loaded.engine is not None:
        if settings.overwrite or settings.replay is not None:
            raise ConfigError("--overwrite and --replay are our own trainer's; take another output=FOLDER")
        from selfverify.integrations.verl.launch import start

        start(loaded, settings.resume)
    from selfverify.core import ranks
    from selfverify.core.events import EVENTS_FILE, read_events
    from selfverify.experiments.run import start_processes
    from selfverify.experiments.run import train as run_train
    from selfverify.trainer.logging import TrainingProgress

    def refuse_to_overwrite() -> None:
        if not settings.resume and not settings.overwrite and holds_a_run(loaded.folder):
            raise ConfigError(
                f"{loaded.output} already holds a run: --resume goes on with it, --overwrite deletes it, and "
                "output=OTHER writes elsewhere"
            )

    start_processes(loaded)
    ranks.on_first(refuse_to_overwrite)
    with TrainingProgress() as shown:
        how = settings.resume, shown.on_step, shown.on_phase
        if loaded.stopping is not None:
            if settings.replay is not None:
                raise ConfigError("--replay: a run that makes its own pairs has no rollouts to replay")
            from selfverify.experiments.train_stopping import train_stopping

            run = train_stopping(loaded, *how)
        else:
            run = run_train(loaded, *how, replay=settings.replay)
    if ranks.stop():
        from selfverify.reports.run_data import story

        if happened := story(read_events(run / EVENTS_FILE)):
            say("\n  ".join(["what happened:", *happened]))
        typer.echo(f"run: {run}")


class MergeConfig(Config):
    """The adapter, and the folder for the whole model."""

    target: str = Field(json_schema_extra={"argument": "RUN_OR_MODEL"})
    """The folder of a run that trained an adapter (`policy.lora`), the adapter's folder, or a GGUF file."""

    output: Path = Field(json_schema_extra={"argument": True})
    """A new folder for the whole model."""


@settings_as_options
def merge(settings: MergeConfig) -> None:
    """Join an adapter (LoRA) and its base model to one whole model, for servers and other libraries.

    A GGUF file, which has no adapter, is unpacked.

    Examples:

    - `selfverify merge runs/mine ./my-model`

    - `selfverify merge builtin:smollm2 ./smollm2`
    """
    from selfverify.core.policy_config import PolicyConfig
    from selfverify.experiments.recipe import RECIPE_FILE, load_recipe
    from selfverify.policy.adapters import base_of
    from selfverify.policy.loading import packed_file

    target, output = settings.target, settings.output
    if output.is_file() or (output.exists() and any(output.iterdir())):
        raise ConfigError(f"{output} is a file, or not empty; choose another folder")
    packed = packed_file(target) is not None and base_of(target) is None
    source = target if packed else saved_model(target)
    trained = (Path(target).expanduser() / RECIPE_FILE).is_file()
    config = load_recipe(target, []).policy if trained else PolicyConfig(dtype="auto")
    from selfverify.policy.policy import Policy

    policy = Policy.load(config.for_model(source).model_copy(update={"device": "cpu"}))
    (policy if packed else policy.merged()).save(output)
    typer.echo(f"model: {output}")
