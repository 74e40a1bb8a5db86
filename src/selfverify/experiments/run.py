"""From a recipe to a run: evaluate a policy, train it, evaluate it again, and write everything down.

One run at a time writes into a run's folder, with however many processes (`held_folder`).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, __version__
from selfverify.core.events import EVENTS_FILE
from selfverify.core.files import held_by_another, make_folder, only_writer, require_held, write_json
from selfverify.core.jsonl_store import read_rows
from selfverify.core.trainer_config import TrainerConfig
from selfverify.data.preferences import read_verdicts
from selfverify.evaluation.answerers import Answerer, make_answerer
from selfverify.evaluation.evaluate import evaluate, write_gallery
from selfverify.evaluation.samples import IMAGES, Progress, read_samples
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, missing_packages, recipe_task, write_recipe
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Method, StepCallback, Training
from selfverify.methods.star import clear_iterations
from selfverify.policy.loading import pick_device
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine, require_vllm
from selfverify.selection.calibration import Fusion
from selfverify.tasks.base import Task
from selfverify.trainer.logging import MetricsLog
from selfverify.trainer.parallel import make_accelerator
from selfverify.trainer.rollout_source import ROLLOUTS_FOLDER
from selfverify.trainer.trainer import Trainer


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make a folder and hold it (`only_writer`). All processes of a run must call this; the first one holds.

    Raises:
        ConfigError: The folder cannot be made, or another run holds it; in all processes.
        FileError: It was deleted, moved or taken over meanwhile (`require_held`).
    """
    with ExitStack() as held:

        def hold() -> None:
            make_folder(folder)
            held.enter_context(only_writer(folder))

        ranks.on_first(hold)
        if ranks.index():
            held.enter_context(held_by_another(folder))
        yield


@contextmanager
def measuring_engine(
    policy: Policy | Answerer, sampling: SamplingConfig, temperature: float
) -> Iterator[None]:
    """A block in which a policy samples by the engine that ``sampling`` names.

    vLLM is reached as long as the block lasts. A model behind a server samples there, with any engine.

    Args:
        policy: The policy that answers.
        sampling: Names the engine, and its settings.
        temperature: Of the answers.

    Raises:
        ConfigError: vLLM is not installed or cannot be reached, there are several processes, or answers are
            greedy: those have no log-probabilities in vLLM that could be compared with others.
    """
    if sampling.vllm is None or isinstance(policy, Answerer):
        yield
        return
    if temperature == 0:
        raise ConfigError(
            "sampling.engine=vllm at temperature 0: greedy answers come from sampling.engine=own, or from "
            "`vllm serve` with policy.path=URL#MODEL"
        )
    if ranks.count() > 1:
        raise ConfigError(
            "sampling.engine=vllm: one process measures with vLLM; give it more devices by "
            "policy.path=URL#MODEL and `vllm serve`"
        )
    require_vllm()
    engine = VLLMEngine(policy, make_accelerator(policy), sampling.vllm)
    policy.engine = engine
    try:
        yield
    finally:
        policy.engine = None
        engine.close()


GALLERY_PROBLEMS = 128
"""The number of problems that the report can show."""
VALIDATION = EvaluationConfig(problems=128, samples=4, split="validation")
"""The evaluation during training. `train` gives it the second turn of the recipe's evaluation."""


def learn(
    policy: Policy,
    task: Task,
    method: Method,
    learner: TrainerConfig,
    sampling: SamplingConfig | None = None,
    *,
    output: Path | str,
    seed: int = 0,
    resume: bool = False,
    on_step: StepCallback | None = None,
    validation: EvaluationConfig | None = None,
    save_as: str | None = None,
    replay: Path | str | None = None,
) -> Policy:
    """Train ``policy`` in place and return it: the Python API's way to train.

    Args:
        policy: The policy to train.
        task: Gives problems and judges answers.
        method: A method from `make_method`: ADPO, GRPO, ...
        learner: Steps, learning rate, checkpoints.
        sampling: Group size, temperature.
        output: The run's folder, which gets ``metrics.jsonl`` and the checkpoints.
        seed: Decides problems and samples. On a CPU the same seed gives the same bits.
        resume: Whether to go on from the newest checkpoint in ``output``. The policy has to be loaded anew
            before, because the KL reference is the policy as it is passed in.
        on_step: Called after every step with its number, metrics and timings.
        validation: The evaluation of every ``learner.log.evaluate_every`` steps; by default `VALIDATION`.
        save_as: A folder within ``output`` for the trained model. With None it is in the checkpoints only.
        replay: The folder of a run that logged all its rollouts (``learner.checkpoint.rollout_log: all``).
            They are learnt from and nothing is sampled; with the same settings the weights are the same.

    Returns:
        The same policy, trained.

    Raises:
        ConfigError: Another process is writing into ``output``, or the method cannot train with these
            settings.
        FileError: ``output`` was deleted, moved or taken over by another run meanwhile.
    """
    sampling = sampling or SamplingConfig()
    if faults := method.faults(learner, sampling):
        raise ConfigError("\n".join(faults))
    ranks.start(policy.device.type == "cpu", learner.process_timeout_s)
    folder, checks = Path(output), validation or VALIDATION

    def check(current: Policy) -> dict[str, float]:
        return _figures(evaluate(current, task, checks, max_new_tokens=sampling.max_new_tokens))

    with held_folder(folder):
        source = None if replay is None else Path(replay)
        training = Training(
            policy, task, method, learner, sampling, folder, seed, resume, replay=source, evaluate=check
        )
        trained: list[Training] = []
        for stage in method.stages(training):
            before = sum(earlier.learner.steps for earlier in trained)
            tell = None if on_step is None else partial(_later, on_step, before)
            trainer = Trainer(dataclasses.replace(stage, on_step=tell))
            try:
                trainer.run()
            finally:
                if policy.engine is not None:
                    policy.engine.close()
                    policy.engine = None
            if save_as is not None:
                trainer.save_model(folder / save_as)
            trainer.parallel.release()
            trained.append(stage)
            if stage.folder != folder:
                ranks.on_first(partial(_join_logs, folder, trained))
            if trainer.step < stage.learner.steps:
                break  # the time is up
    return policy


def _figures(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an evaluation's summary by one name each, as they stand in metrics.jsonl."""
    figures = dict(summary)
    for table, prefix in (("turns", "turns"), ("conversations", "conversation")):
        figures |= {f"{prefix}/{name}": value for name, value in summary.get(table, {}).items()}
    for name, figure in summary.get("metrics", {}).items():
        figures |= {f"{name}/{rule}": curve[-1] for rule, curve in figure["curves"].items()}
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def _join_logs(output: Path, stages: Sequence[Training]) -> None:
    """Write the metrics and timings of a run's stages as one file each, their steps counted through."""
    require_held(output)
    for name in ("metrics.jsonl", "timing.jsonl"):
        (output / name).unlink(missing_ok=True)
        log, before = MetricsLog(output / name), 0
        for stage in stages:
            for row in read_rows(stage.folder / name):
                log.append(row | {"step": before + row["step"], **stage.labels})
            before += stage.learner.steps


def _later(on_step: StepCallback, before: int, step: int, steps: int, *figures: Any) -> None:
    on_step(before + step, before + steps, *figures)


def build(recipe: Recipe) -> tuple[Policy, Task, Method]:
    """Make the policy, the task and the method that a recipe names.

    Raises:
        ConfigError: A data file, or the file of verdicts that ``learner.keep`` names, is missing. This is
            found before a model is loaded.
    """
    task = recipe_task(recipe)
    method = make_method(recipe.method.name, **recipe.method.options)
    task.check_files("train")
    _exam(recipe, task).check_files(recipe.evaluation.split)
    if recipe.learner.keep is not None:
        read_verdicts(recipe.learner.keep)
    return Policy.load(recipe.policy), task, method


def _exam(recipe: Recipe, task: Task) -> Task:
    """Return the task as evaluations have it; data that training has read is not read again."""
    return recipe_task(recipe, measured=True) if recipe.evaluation_task else task


def measure(
    policy: Policy | Answerer, task: Task, recipe: Recipe, store: Path, when: str, **how: Any
) -> dict[str, Any]:
    """Evaluate a policy by a recipe's settings.

    Args:
        policy: The policy.
        task: The task as evaluations have it.
        recipe: Says how to evaluate.
        store: The file for the samples.
        when: The policy's name in the header of ``store``.
        how: Further arguments of `evaluate`.
    """
    about = {"model": when, "recipe": recipe.name}
    tokens = recipe.sampling.max_new_tokens
    return evaluate(policy, task, recipe.evaluation, store, describe=about, max_new_tokens=tokens, **how)


def train(
    recipe: Recipe,
    resume: bool = False,
    on_step: StepCallback | None = None,
    on_phase: Any = None,
    before: dict[str, Any] | None = None,
    replay: Path | None = None,
) -> Path:
    """Run a recipe: evaluate, train, evaluate again. Returns the run's folder.

    The folder holds ``recipe.yaml``, ``metrics.jsonl``, ``timing.jsonl``, ``events.jsonl``, ``checkpoints/``,
    the trained ``model/``, ``samples-before.jsonl``, ``samples-after.jsonl``, ``metrics.json`` and
    ``gallery/``, and ``rollouts/`` where they are logged. A supervised method is measured only if ``before``
    is given, because it mostly makes the policy that other runs start from.

    Args:
        recipe: The recipe.
        resume: Whether to go on from the newest checkpoint.
        on_step: Called after every training step.
        on_phase: Called as ``on_phase(name, done, total)`` during an evaluation.
        before: The summary of an evaluation of the same policy on the same problems. It takes the place of
            the first evaluation, so that runs that start from one policy can share it.
        replay: The folder of a run whose logged rollouts are learnt from, as `learn` takes it.

    Raises:
        ConfigError: ``replay`` is the run's own folder, or holds no rollout log; another process is writing
            into the folder; or the recipe makes a verifier of when to stop, which
            `experiments.train_stopping` does.
    """
    if recipe.sampling.engine == "vllm":
        require_vllm()
    start_processes(recipe)
    if recipe.stopping is not None:
        raise ConfigError(
            f"recipe {recipe.name} has a section `stopping`, whose pairs are to be made first: "
            "`selfverify train` or experiments.train_stopping does"
        )
    with held_folder(recipe.folder):
        folder = recipe.folder
        if replay is not None:
            ranks.on_first(lambda: _check_replay(replay, folder))
        policy, task, method = build(recipe)  # what it refuses costs an earlier run nothing
        if not resume:
            ranks.on_first(lambda: clear_run(folder))
        on_step = noting_recipe(recipe, folder, resume, on_step)
        exam = _exam(recipe, task)
        evaluated = method.measured or before is not None

        if evaluated and before is None:
            store, told = folder / "samples-before.jsonl", of_phase(on_phase, "before")
            before = measure(policy, exam, recipe, store, "before", progress=told)
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
            replay=replay,
        )
        ranks.on_first(lambda: write_recipe(recipe, folder))
        if evaluated:
            weights = policy.whole(policy.fingerprint)
            ranks.on_first(lambda: _after_training(folder, recipe, exam, weights))
            store, told = folder / "samples-after.jsonl", of_phase(on_phase, "after")
            after = measure(policy, exam, recipe, store, "after", progress=told)
            settings = recipe.model_dump(mode="json")
            found = {"before": before, "after": after, "settings": settings, "version": __version__}
            ranks.on_first(lambda: write_json(folder / "metrics.json", found))
        return folder


def noting_recipe(
    recipe: Recipe, folder: Path, resume: bool, on_step: StepCallback | None = None
) -> StepCallback | None:
    """Write the resolved recipe into a run's folder: at once, or after the first step of a run that goes on.

    A run that is refused because of changed settings leaves the recipe that its folder was made by.

    Returns:
        The function for `learn` to call after each step.
    """
    if ranks.index():
        return on_step
    if not (resume and (folder / RECIPE_FILE).is_file()):
        write_recipe(recipe, folder)
        return on_step
    note = cache(partial(write_recipe, recipe, folder))

    def stepped(*figures: Any) -> None:
        note()
        if on_step is not None:
            on_step(*figures)

    return stepped


def of_phase(on_phase: Any, name: str) -> Progress | None:
    """Return the progress of one phase, for a caller that is told of all."""
    return None if on_phase is None else partial(on_phase, name)


def start_processes(recipe: Recipe) -> None:
    """Join the other processes, if a launcher started several. This has to come before anything else.

    Raises:
        ConfigError: A package is missing that the run would want later.
    """
    if missing := missing_packages(recipe):
        raise ConfigError("\n".join(missing))
    ranks.start(pick_device(recipe.policy.device).type == "cpu", recipe.learner.process_timeout_s)


def _check_replay(replay: Path, folder: Path) -> None:
    if replay.resolve() == folder.resolve():
        raise ConfigError(f"{replay} is the folder of this run; resume it to go on with it and its log")
    if not any(replay.glob(f"**/{ROLLOUTS_FOLDER}/step-*.jsonl")):
        raise ConfigError(f"{replay} holds no rollout log; learner.checkpoint.rollout_log=all writes one")


def _after_training(folder: Path, recipe: Recipe, task: Task, weights: str) -> None:
    write_gallery(task, recipe.evaluation, folder / "gallery", GALLERY_PROBLEMS)
    samples = folder / "samples-after.jsonl"
    # A resumed run that has trained further measures its new weights. One that was killed while it measured
    # goes on with the samples that it has.
    if samples.exists() and read_samples(samples)[0]["weights"] != weights:
        samples.unlink()


def clear_run(folder: Path) -> None:
    """Remove what an earlier run has left, so that a fresh run is not mixed with it."""
    for name in ("metrics.jsonl", "timing.jsonl", EVENTS_FILE, "metrics.json"):
        (folder / name).unlink(missing_ok=True)
    for samples in folder.glob("samples*.jsonl"):
        samples.unlink()
    clear_iterations(folder)
    for name in ("checkpoints", "model", "gallery", IMAGES, ROLLOUTS_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def evaluate_recipe(
    recipe: Recipe,
    model: str | Path | None = None,
    output: Path | None = None,
    fusion: Fusion | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Evaluate a model on a recipe's task, with the engine of its sampling.

    Args:
        recipe: Names the task, and says how to evaluate.
        model: A model's folder, ``builtin:NAME``, or ``URL#MODEL`` behind a server, in place of the recipe's
            policy.
        output: The folder for ``samples.jsonl`` and ``metrics.json``; by default ``<recipe.output>/eval``.
        fusion: Makes fused scores, whose figures are told beside the others.
        progress: Called after each batch.

    Returns:
        The summary of `selfverify.evaluation.evaluate.evaluate`.
    """
    settings = recipe.policy.for_model(model) if model else recipe.policy
    start_processes(recipe)
    folder = output or recipe.folder / "eval"
    with held_folder(folder):
        task = recipe_task(recipe, measured=True)
        task.check_files(recipe.evaluation.split)
        policy = make_answerer(settings)
        store = folder / "samples.jsonl"
        engine = recipe.sampling.engine if isinstance(policy, Policy) else "own"
        with measuring_engine(policy, recipe.sampling, recipe.evaluation.temperature):
            how = {"progress": progress, "fusion": fusion, "engine": engine}
            summary = measure(policy, task, recipe, store, settings.path, **how)
        found = {"after": summary, "settings": recipe.model_dump(mode="json"), "version": __version__}

        def write() -> None:
            write_gallery(task, recipe.evaluation, folder / "gallery", GALLERY_PROBLEMS)
            write_json(folder / "metrics.json", found)

        ranks.on_first(write)
        return summary
