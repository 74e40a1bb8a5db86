"""The commands that train or change models: ``selfverify quickstart``, ``train`` and ``merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import Overrides, RecipeName, say, settings_as_options
from selfverify.core.config import CommandConfig, Seed
from selfverify.core.errors import ConfigError


class QuickstartConfig(CommandConfig):
    """How the quickstart is run."""

    paper: Literal["adpo", "adapo", "smartsnap", "vts-v"] = Field(
        "adpo",
        description="What is shown: scores that come to mean something (`adpo`), second turns that correct "
        "(`adapo`), an agent that proves its work (`smartsnap`), a verifier that ends looking (`vts-v`).",
        json_schema_extra={"argument": True},
    )

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


class TrainConfig(CommandConfig):
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
    from selfverify.cli.run_folders import dry_run_lines, holds_a_run, plan_lines
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
    from selfverify.core.events import EVENTS_FILE, read_events, story
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
        if loaded.stopping is not None:
            if settings.replay is not None:
                raise ConfigError("--replay: a run that makes its own pairs has no rollouts to replay")
            from selfverify.experiments.train_stopping import train_stopping

            run = train_stopping(loaded, settings.resume, shown.on_step, shown.on_phase)
        else:
            run = run_train(
                loaded,
                resume=settings.resume,
                on_step=shown.on_step,
                on_phase=shown.on_phase,
                replay=settings.replay,
            )
    if ranks.stop():
        if happened := story(read_events(run / EVENTS_FILE)):
            say("\n  ".join(["what happened:", *happened]))
        typer.echo(f"run: {run}")


def merge(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="The folder of a run that trained an adapter (`policy.lora`), the adapter's folder, or a "
            "GGUF file.",
        ),
    ],
    output: Annotated[Path, typer.Argument(help="A new folder for the whole model.")],
) -> None:
    """Join an adapter (LoRA) and its base model to one whole model, for servers and other libraries.

    A GGUF file, which has no adapter, is unpacked.

    Examples:

    - `selfverify merge runs/mine ./my-model`

    - `selfverify merge builtin:smollm2 ./smollm2`
    """
    from selfverify.cli.run_folders import saved_model
    from selfverify.core.policy_config import PolicyConfig
    from selfverify.experiments.recipe import RECIPE_FILE, load_recipe
    from selfverify.policy.adapters import base_of
    from selfverify.policy.loading import packed_file

    if output.is_file() or (output.exists() and any(output.iterdir())):
        raise ConfigError(f"{output} is a file, or not empty; choose another folder")
    packed = packed_file(target) is not None and base_of(target) is None
    source = target if packed else saved_model(target)
    trained = (Path(target).expanduser() / RECIPE_FILE).is_file()
    settings = load_recipe(target, []).policy if trained else PolicyConfig(dtype="auto")
    from selfverify.policy.policy import Policy

    settings = settings.for_model(source).model_copy(update={"device": "cpu"})
    policy = Policy.load(settings)
    (policy if packed else policy.merged()).save(output)
    typer.echo(f"model: {output}")
