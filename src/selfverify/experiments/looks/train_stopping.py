"""A verifier of when to stop looking, from a reasoner alone: conversations, pairs, DPO, ε (VTS-V §3.3, §4.2).

FOLDER/
  recipe.yaml   the recipe
  looks/        the reasoner's conversations and the pairs made of them, see `looks_folder`
  verifier/     the run of `dpo`; ``verifier/model`` is the verifier, ``stopping.json`` stands in it
  looking/      the conversations on which ε was chosen
  leaks.json    whether words alone tell the sides of a pair apart
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from selfverify.core import ranks
from selfverify.core.config import StoppingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import write_json, write_text
from selfverify.evaluation.samples import Progress
from selfverify.experiments.looks.capped_looks import CappedLooks, calibrate_stopping
from selfverify.experiments.looks.collect_looks import branch_looks, collect_looks
from selfverify.experiments.looks.looks_folder import PAIRS
from selfverify.experiments.looks.make_sets import make_sets
from selfverify.experiments.looks.read_pairs import read_pairs
from selfverify.experiments.recipe import RECIPE_FILE, NamedConfig, Recipe, to_yaml
from selfverify.experiments.run import clear_run, train
from selfverify.experiments.run_folder import held_folder
from selfverify.experiments.teacher_settings import TeacherConfig
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.trainer.trainer import StepCallback
from selfverify.visual.traces import MOST, Demands, Pairing, leak_test

logger = logging.getLogger(__name__)

LOOKS, VERIFIER, LOOKING = "looks", "verifier", "looking"
"""The folders in a run's folder."""


def train_stopping(
    recipe: Recipe, resume: bool = False, on_step: StepCallback | None = None, on_phase: Any = None
) -> Path:
    """Train a verifier as ``recipe.stopping`` says. Returns the run's folder.

    Each part goes on where it was stopped: conversations are in journals, pairs follow from them, and DPO
    goes on from its checkpoint.

    Args:
        recipe: Its policy is the reasoner, and with an adapter becomes the verifier; its task is looked at.
        resume: Whether to go on with what the folder holds; otherwise it is deleted.
        on_step: Called after every training step.
        on_phase: Called as ``on_phase(name, done, total)`` while conversations are held.

    Raises:
        ConfigError: The recipe's method does not learn from pairs; its policy has no adapter; several
            processes were started; or the folder holds conversations of other settings.
        DataError: No pair could be made; the message says what was left out, and why.
    """
    how = recipe.stopping
    _check(recipe, how)
    assert how is not None
    folder = recipe.folder
    with held_folder(folder):
        if not resume:
            clear_run(folder)
            for name in (LOOKS, VERIFIER, LOOKING):
                shutil.rmtree(folder / name, ignore_errors=True)
        write_text(folder / RECIPE_FILE, to_yaml(recipe))
        _make_pairs(recipe, how, _phase(on_phase, "what the policy looks at"))
        train(_on_pairs(recipe), resume, on_step, on_phase)
        verifier = folder / VERIFIER / MODEL_FOLDER
        looks = CappedLooks(recipe, recipe.policy.path, str(verifier), output=folder / LOOKING)
        calibrate_stopping(looks, how.rule, *how.target, _phase(on_phase, "when it has seen enough"))
    return folder


def _check(recipe: Recipe, how: StoppingConfig | None) -> None:
    if how is None:
        raise ConfigError(f"recipe {recipe.name} has no section `stopping`")
    if recipe.method.name != "dpo":
        raise ConfigError(
            f"stopping: a verifier learns from pairs, and method {recipe.method.name} does not; set "
            "method.name=dpo"
        )
    if recipe.policy.lora is None:
        raise ConfigError(
            "stopping: the verifier is compared with what it was trained from, the model below its adapter; "
            "set policy.lora"
        )
    if ranks.count() > 1:
        raise ConfigError("stopping: conversations are held by one process; start one")


def _make_pairs(recipe: Recipe, how: StoppingConfig, progress: Progress | None) -> None:
    """Hold the reasoner's conversations, pair them, and say whether words tell the sides apart."""
    folder = recipe.folder / LOOKS
    reasoner = recipe.model_copy(update={"policy": recipe.policy.for_model(recipe.policy.path)})
    teacher = TeacherConfig(own=True, temperature=how.temperature, max_tokens=recipe.sampling.max_new_tokens)
    collect_looks(reasoner, teacher, folder, how.problems, how.samples, progress=progress)
    if how.hurried:
        branch_looks(reasoner, teacher, folder, "hurried", how.hurried, progress=progress)
    sets = make_sets(folder, Demands(), Pairing(wasteful=how.pairs == "wrong+wasteful"))
    if not sets.pairs:
        reasons = ", ".join(f"{count}: {why}" for why, count in sets.pairs_dropped.items())
        raise DataError(
            f"{folder}: no pair came of {sets.traces} conversations ({reasons or 'none was left out'}); more "
            "problems or a higher temperature (stopping.problems, stopping.temperature) give more"
        )
    leaks = leak_test(read_pairs(folder), words=10)
    write_json(recipe.folder / "leaks.json", asdict(leaks) | {"passes": leaks.passes})
    if not leaks.passes:
        logger.warning(
            "words alone tell the better side of %.0f %% of the pairs, and %.0f %% may be; see leaks.json",
            100 * leaks.accuracy,
            100 * MOST,
        )


def _on_pairs(recipe: Recipe) -> Recipe:
    """The recipe of the training itself."""
    task = NamedConfig(name="pairs", options={"train": str(recipe.folder / LOOKS / PAIRS)})
    changed = {
        "task": task, "evaluation_task": {}, "stopping": None, "output": str(recipe.folder / VERIFIER)
    }  # fmt: skip
    return recipe.model_copy(update=changed)


def _phase(on_phase: Any, name: str) -> Callable[[int, int], None] | None:
    return None if on_phase is None else partial(on_phase, name)
