"""From a recipe to a run: load, evaluate, train, evaluate, write everything down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from selfverify import ranks
from selfverify.bootstrap import clear_iterations, iterations
from selfverify.errors import ConfigError
from selfverify.evaluation.config import EvaluationConfig
from selfverify.evaluation.evaluate import evaluate, write_gallery
from selfverify.evaluation.store import stored_settings
from selfverify.events import EVENTS_FILE
from selfverify.learner.config import LearnerConfig
from selfverify.learner.loop import Learner, StepCallback
from selfverify.methods import Method, make_method
from selfverify.methods.star import STaR
from selfverify.policy.config import SamplingConfig
from selfverify.policy.loading import pick_device
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import require_vllm
from selfverify.recipe import Recipe, to_yaml
from selfverify.tasks import Task, make_task

GALLERY_PROBLEMS = 128
VALIDATION = EvaluationConfig(problems=128, samples=4, split="validation")
"""What is measured during training; in a recipe with as many turns as its evaluation."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1))
    os.replace(partial, path)


def learn(
    policy: Policy,
    task: Task,
    method: Method,
    learner: LearnerConfig,
    sampling: SamplingConfig | None = None,
    *,
    output: Path | str,
    seed: int = 0,
    resume: bool = False,
    on_step: StepCallback | None = None,
    validation: EvaluationConfig | None = None,
    save_as: str | None = None,
) -> Policy:
    """Train ``policy`` in place and return it: the Python API's way to train.

    Args:
        policy: The policy to train.
        task: Gives problems and judges answers.
        method: ADPO, GRPO, ... from `make_method`.
        learner: Steps, learning rate, checkpoints.
        sampling: Group size, temperature.
        output: Run folder: metrics.jsonl, checkpoints.
        seed: Decides problems and samples; on a CPU the same seed gives the same bits.
        resume: Go on from the newest checkpoint in ``output``. Load the policy anew first: the KL
            reference is the policy as it is passed in.
        on_step: Called after every step with its number, metrics and timings.
        validation: What ``learner.evaluate_every`` measures; default `VALIDATION`.
        save_as: Folder within ``output`` for the trained model; None does not save it apart.

    Returns:
        The same policy, trained.
    """
    sampling, output = sampling or SamplingConfig(), Path(output)
    checks = validation or VALIDATION

    def check(current: Policy) -> dict[str, float]:
        figures = evaluate(current, task, checks, max_new_tokens=sampling.max_new_tokens)
        figures |= {f"turns/{name}": value for name, value in figures.pop("turns", {}).items()}
        for name, figure in figures.pop("metrics", {}).items():
            figures |= {f"{name}/{rule}": curve[-1] for rule, curve in figure["curves"].items()}
        return {name: value for name, value in figures.items() if isinstance(value, float)}

    parts: Iterable[tuple[Path, Task, LearnerConfig]] = [(output, task, learner)]
    if isinstance(method, STaR):
        parts = iterations(policy, task, method, learner, sampling, output, seed, resume)
    before = 0
    for folder, given, part in parts:
        tell = None if on_step is None else partial(_later, on_step, before)
        loop = Learner(policy, given, method, part, sampling, folder, seed, evaluate=check, on_step=tell)
        try:
            loop.run(resume=resume)
        finally:
            if policy.engine is not None:
                policy.engine.close()
                policy.engine = None
        if save_as is not None:
            loop.save_model(output / save_as)
        loop.parallel.release()
        before += part.steps
    return policy


def _later(on_step: StepCallback, before: int, step: int, *figures: Any) -> None:
    on_step(before + step, *figures)


def build(recipe: Recipe) -> tuple[Policy, Task, Method]:
    """The policy, the task and the method that a recipe names.

    Raises:
        ConfigError: A data file is missing; that shows before a model is loaded.
    """
    task = make_task(recipe.task.name, **recipe.task.options)
    method = make_method(recipe.method.name, **recipe.method.options)
    splits: Any = getattr(task, "splits", None)
    for split in ("train", recipe.evaluation.split) if splits is not None else ():
        if splits.files.get(split) is not None:
            try:
                splits.rows(split)
            except ConfigError as error:
                raise ConfigError(f"task.{split}: {error}") from None
    return Policy.load(recipe.policy), task, method


def measure(
    policy: Policy,
    task: Task,
    recipe: Recipe,
    store: Path,
    when: str,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Evaluate as the recipe says, into ``store``."""
    return evaluate(
        policy,
        task,
        recipe.evaluation,
        store,
        describe={"model": when, "recipe": recipe.name},
        max_new_tokens=recipe.sampling.max_new_tokens,
        progress=progress,
    )


def train(
    recipe: Recipe,
    resume: bool = False,
    on_step: StepCallback | None = None,
    on_phase: Any = None,
    before: dict[str, Any] | None = None,
) -> Path:
    """Run a recipe: evaluate before, train, evaluate after. Returns the run folder.

    The folder holds ``recipe.yaml``, ``metrics.jsonl``, ``timing.jsonl``, ``events.jsonl``, ``checkpoints/``,
    the trained ``model/``, ``samples-before.jsonl``, ``samples-after.jsonl``, ``metrics.json`` and
    ``gallery/``. A supervised method is only measured where ``before`` is given: it mostly makes what others
    start from.

    Args:
        recipe: What to do.
        resume: Go on from the newest checkpoint.
        on_step: Called after every training step.
        on_phase: Called as ``on_phase(name, done, total)`` while evaluating.
        before: The summary of an evaluation of the same policy on the same problems, which is then not made
            again: runs that start from one policy share it.
    """
    if recipe.sampling.engine == "vllm":
        require_vllm()
    folder = recipe.folder
    start_processes(recipe)
    ranks.on_first(lambda: _prepare(folder, recipe, resume))
    policy, task, method = build(recipe)
    evaluated = method.objective == "surrogate" or before is not None

    def progress(phase: str) -> Callable[[int, int], None] | None:
        return None if on_phase is None else lambda done, total: on_phase(phase, done, total)

    if evaluated and before is None:
        before = measure(policy, task, recipe, folder / "samples-before.jsonl", "before", progress("before"))
    learn(
        policy,
        task,
        method,
        recipe.learner,
        recipe.sampling,
        output=folder,
        seed=recipe.seed,
        resume=resume,
        on_step=on_step,
        validation=VALIDATION.model_copy(update={"second_turn": recipe.evaluation.second_turn}),
        save_as="model",
    )
    if evaluated:
        weights = policy.whole(policy.fingerprint)
        ranks.on_first(lambda: _after_training(folder, recipe, task, weights))
        after = measure(policy, task, recipe, folder / "samples-after.jsonl", "after", progress("after"))
        found = {"before": before, "after": after, "settings": recipe.model_dump(mode="json")}
        ranks.on_first(lambda: write_json(folder / "metrics.json", found))
    return folder


def start_processes(recipe: Recipe) -> None:
    """Join the other processes, if a launcher started several; nothing else may come before."""
    ranks.start(cpu=pick_device(recipe.policy.device).type == "cpu")


def _prepare(folder: Path, recipe: Recipe, resume: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        _clear(folder)
    (folder / "recipe.yaml").write_text(to_yaml(recipe))


def _after_training(folder: Path, recipe: Recipe, task: Task, weights: str) -> None:
    write_gallery(task, recipe.evaluation, folder / "gallery", GALLERY_PROBLEMS)
    samples = folder / "samples-after.jsonl"
    # A resumed run that has trained on measures its new weights; one that was killed measuring goes on.
    if samples.exists() and stored_settings(samples).get("weights") != weights:
        samples.unlink()


def _clear(folder: Path) -> None:
    """A fresh run must not be mixed with an old one's samples, metrics or checkpoints."""
    import shutil

    for name in (
        "metrics.jsonl",
        "timing.jsonl",
        EVENTS_FILE,
        "metrics.json",
    ):
        (folder / name).unlink(missing_ok=True)
    for samples in folder.glob("samples-*.jsonl"):
        samples.unlink()
    clear_iterations(folder)
    for name in ("checkpoints", "model", "gallery"):
        shutil.rmtree(folder / name, ignore_errors=True)


def evaluate_recipe(recipe: Recipe, model: str | None = None, output: Path | None = None) -> dict[str, Any]:
    """Evaluate a model on a recipe's task.

    Args:
        recipe: Names the task and how to evaluate.
        model: A checkpoint folder or ``builtin:NAME`` instead of the recipe's policy.
        output: Folder for ``samples.jsonl`` and ``metrics.json``; default ``<recipe.output>/eval``.
    """
    settings = recipe.policy.for_model(model) if model else recipe.policy
    start_processes(recipe)
    policy = Policy.load(settings)
    task = make_task(recipe.task.name, **recipe.task.options)
    folder = output or recipe.folder / "eval"
    ranks.on_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    summary = measure(policy, task, recipe, folder / "samples.jsonl", settings.path)
    found = {"after": summary, "settings": recipe.model_dump(mode="json")}

    def write() -> None:
        write_gallery(task, recipe.evaluation, folder / "gallery", GALLERY_PROBLEMS)
        write_json(folder / "metrics.json", found)

    ranks.on_first(write)
    return summary
