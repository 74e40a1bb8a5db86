"""What the command line has to know about runs and models on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfverify.errors import ConfigError
from selfverify.learner.checkpoint import CHECKPOINTS_FOLDER, MODEL_FOLDER, best_checkpoint, latest_checkpoint
from selfverify.policy.config import is_saved_model
from selfverify.recipe import RECIPE_FILE, Recipe


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dictionaries, with dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def holds_a_run(folder: Path) -> bool:
    """Whether training has already written something there."""
    metrics = folder / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size > 0:
        return True
    return any(any(folder.glob(kept)) for kept in ("checkpoints/checkpoint-*", "iteration-*"))


def dry_run_lines(recipe: Recipe, resume: bool) -> list[str]:
    """What ``train`` would do, for people."""
    learner, sampling = recipe.learner, recipe.sampling
    rollouts = learner.steps * learner.groups_per_step
    updates = learner.steps * learner.updates_per_rollout * learner.inner_epochs
    checkpoint = latest_checkpoint(recipe.folder / CHECKPOINTS_FOLDER)
    lines = [
        f"method {recipe.method.name} on task {recipe.task.name}, from model {recipe.policy.path}",
        f"{learner.steps} steps x {learner.groups_per_step} problems x {sampling.group_size} samples = "
        f"{rollouts * sampling.group_size} trajectories, {updates} updates",
        f"writes to {recipe.output}"
        + (
            " (already holds a run: needs --resume or --overwrite)"
            if holds_a_run(recipe.folder) and not resume
            else ""
        ),
    ]
    if resume:
        lines.append(f"resumes from {checkpoint.name}" if checkpoint else "no checkpoint there: starts anew")
    return lines


def resolve_target(target: str, recipe: str | None) -> tuple[str, str | None]:
    """What to measure: ``(recipe, model)``, model None for the one that the recipe starts from."""
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
    """The model folder that a run's folder or a model's folder stands for.

    Raises:
        ConfigError: It is neither.
    """
    folder = Path(target).expanduser()
    if (folder / RECIPE_FILE).is_file():
        return _trained_model(folder)
    if is_saved_model(folder):
        return str(folder)
    raise ConfigError(f"{target} is neither a run nor a saved model")


def _trained_model(run: Path) -> str:
    checkpoints = run / CHECKPOINTS_FOLDER
    best = best_checkpoint(checkpoints)
    if best is None and is_saved_model(run / MODEL_FOLDER):
        return str(run / MODEL_FOLDER)
    checkpoint = best or latest_checkpoint(checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{run}: this run holds no trained model and no complete checkpoint")
    return str(checkpoint / MODEL_FOLDER)
