"""The folders of runs that commands are given."""

from __future__ import annotations

from pathlib import Path

from selfverify.core.errors import ConfigError, SelfVerifyError
from selfverify.core.policy_config import is_saved_model, is_served
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, missing_packages
from selfverify.trainer.checkpoint import CHECKPOINTS_FOLDER, MODEL_FOLDER, best_checkpoint, latest_checkpoint


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


def resolve_target(target: str, recipe: str | None) -> tuple[str, str | None]:
    """Return the recipe to measure by and the model to measure; None is the model the recipe starts from.

    Raises:
        ConfigError: ``target`` is a model that belongs to no run, and no recipe is given.
    """
    if is_served(target):
        if recipe is None:
            raise ConfigError(f"{target} is a model: say with --recipe NAME what to measure it by")
        return recipe, target
    folder = Path(target).expanduser()
    if (folder / RECIPE_FILE).is_file():
        return recipe or target, _trained_model(folder)
    if is_saved_model(folder):
        run = next((above for above in folder.resolve().parents if (above / RECIPE_FILE).is_file()), None)
        if recipe is None and run is None:
            raise ConfigError(f"{target} is a model: say with --recipe NAME what to measure it by")
        return recipe or str(run), target
    return recipe or target, None


def saved_model(target: str) -> str:
    """Return the model's folder: ``target`` itself, or the model that the run in ``target`` has trained.

    Raises:
        ConfigError: ``target`` is neither a run nor a model.
    """
    folder = Path(target).expanduser()
    if (folder / RECIPE_FILE).is_file():
        return _trained_model(folder)
    if is_saved_model(folder):
        return str(folder)
    raise ConfigError(f"{target} is neither a run nor a saved model")


def _trained_model(run: Path) -> str:
    checkpoints = run / CHECKPOINTS_FOLDER
    best = best_checkpoint(checkpoints, verify=True)
    if best is None and is_saved_model(run / MODEL_FOLDER):
        return str(run / MODEL_FOLDER)
    checkpoint = best or latest_checkpoint(checkpoints, verify=True)
    if checkpoint is None:
        raise ConfigError(f"{run}: this run holds no trained model and no complete checkpoint")
    return str(checkpoint / MODEL_FOLDER)
