"""A verifier of when to stop looking (VTS-V §3.3, §4).

A reasoner, or a teacher in its place, holds conversations; a judge says which are right; pairs are made of
them, DPO learns from the pairs, and ε is chosen.

FOLDER/
  recipe.yaml   the recipe
  looks/        the conversations and the pairs made of them: `experiments.visual_data`, `visual_sets`
  verifier/     the run of `dpo`; ``verifier/model`` is the verifier, ``stopping.json`` stands in it
  looking/      the conversations on which ε was chosen
  leaks.json    whether words alone tell the sides of a pair apart
  learnt.json   the digest of the pairs from which the verifier learns

A verifier's ε and its rules are measured on conversations that were held to the cap.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from selfverify.core import ranks
from selfverify.core.config import StoppingConfig
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.files import file_digests, naming, read_regular, write_json
from selfverify.evaluation.samples import Progress
from selfverify.evaluation.visual_metrics import CappedArrays, as_arrays, compared, run_to_cap
from selfverify.experiments.command_config import ListenerConfig, TeacherConfig
from selfverify.experiments.recipe import RECIPE_FILE, NamedConfig, Recipe, recipe_task, write_recipe
from selfverify.experiments.run import clear_run, held_folder, noting_recipe, of_phase, start_processes, train
from selfverify.experiments.visual_data import Way, branch_looks, collect_looks
from selfverify.experiments.visual_sets import PAIRS, judge_looks, make_sets, read_pairs
from selfverify.methods.base import StepCallback
from selfverify.policy.policy import Policy
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import VisualTask
from selfverify.visual.pairs import MOST, Pairing, leak_test
from selfverify.visual.stopping import (
    Kind,
    StepMeans,
    StopCalibration,
    StopFigures,
    Target,
    fit_epsilon,
    step_means,
    stop_figures,
)
from selfverify.visual.task import VisualToolTask

CAP_FILE = "looked-{split}.jsonl"
"""The journal of the conversations, in the output folder."""


def weights_digest(verifier: str) -> str | None:
    """16 hex digits that change when a verifier's files of weights do; None where it is no folder here.

    Raises:
        FileError: A file cannot be read.
    """
    folder = Path(verifier).expanduser()
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        return None
    with naming(folder):
        digests = file_digests(paths)
    named = "".join(f"{path.name} {digests[path]}\n" for path in paths)
    return hashlib.blake2b(named.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class CappedLooks:
    """The policy that looks, the verifier that listens, and the folder of the conversations.

    Args:
        recipe: Names the task and the evaluation's settings.
        how: The others; the recipe is not read from it.
    """

    recipe: Recipe
    how: ListenerConfig

    def task(self) -> VisualTask:
        """The task, whose conversations no rule ends, and neither does the model.

        Raises:
            ConfigError: Tools or a cap are given for a task that has its own.
        """
        task, how = recipe_task(self.recipe, measured=True), self.how
        if not isinstance(task, VisualTask):
            given = {} if how.max_steps is None else {"max_steps": how.max_steps}
            task = VisualToolTask(task, VisualConfig(tools=how.tool, **given))
        elif how.tool or how.max_steps is not None:
            raise ConfigError(
                f"task {task.name} looks in its own way: set the cap with task.max_steps=N, and leave "
                "tools and cap out here"
            )
        if not task.judges:
            raise ConfigError(f"task {task.name} knows no right answers, so that there is nothing to compare")
        held = {"stop": "never", "terminate": "refuse", "rule": None, "epsilon": None}
        return task.looking_by(held | {"verifier": how.verifier, "verifier_base": how.verifier_base})

    def hold(self, split: Literal["validation", "test"], progress: Progress | None = None) -> CappedArrays:
        """Hold the conversations of a split, or go on with them, and return all.

        Raises:
            ConfigError: The verifier cannot be loaded, or the journal is one of other settings.
            DataError: A problem cannot be made, or no conversation can be used.
        """
        start_processes(self.recipe)
        how = self.how
        settings = self.recipe.policy.for_model(how.model) if how.model else self.recipe.policy
        folder, task = how.output or self.recipe.folder / LOOKING, self.task()
        task.check_files(split)
        with held_folder(folder):
            rows = run_to_cap(
                Policy.load(settings),
                task,
                self.recipe.evaluation.model_copy(update={"split": split}),
                folder / CAP_FILE.format(split=split),
                max_new_tokens=self.recipe.sampling.max_new_tokens,
                describe={"model": settings.path, "verifier_weights": weights_digest(how.verifier)},
                progress=progress,
            )
        return as_arrays(rows)


@dataclass(frozen=True, slots=True)
class FittedStop:
    """The outcome of a calibration.

    Args:
        calibration: The rule with its ε.
        path: The file that holds it.
        means: Theorem A.6's conditions, for the steps in ``steps``.
        steps: The steps, from 1, that were measured.
        figures: When the rule stops, and how Δr is spread.
        conversations: How many conversations there were.
        left_out: How many failed or have no verdict; those without a step are among them.
    """

    calibration: StopCalibration
    path: Path
    means: StepMeans
    steps: list[int]
    figures: StopFigures
    conversations: int
    left_out: int

    def plain(self) -> dict[str, Any]:
        """Return all fields as lists and numbers, for JSON."""

        def listed(value: Any) -> Any:
            return [None if np.isnan(one) else one for one in value.tolist()]

        text = json.dumps(asdict(self) | {"path": str(self.path)}, default=listed)
        plain: dict[str, Any] = json.loads(text)
        return plain


def calibrate_stopping(
    looks: CappedLooks, rule: Kind, target: Target, wanted: float, progress: Progress | None = None
) -> FittedStop:
    """Choose ε on validation problems and store it beside the verifier.

    Args:
        looks: The policy, the verifier, and the conversations.
        rule: |Δr| < ε (``absolute``) or Δr < ε (``signed``).
        target: The aim.
        wanted: See `fit_epsilon`.
        progress: Called after each batch.

    Raises:
        ConfigError: The verifier is no folder here, so that nothing can be stored beside it; or no ε holds
            the target.
        DataError: Nothing was measured.
    """
    folder = Path(looks.how.verifier).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{looks.how.verifier} is no folder here; ε is stored beside a verifier's weights")
    looked = looks.hold("validation", progress)
    stepped = looked.lengths > 0
    if not stepped.any():
        raise DataError(f"none of {len(stepped)} conversations has a step; does the model call tools?")
    delta_r, plans, lengths = looked.delta_r[stepped], looked.delta_r_plan[stepped], looked.lengths[stepped]
    evaluation = looks.recipe.evaluation
    about = {
        "reasoner": looks.how.model or looks.recipe.policy.path,
        "task": looks.recipe.measured_task.name,
        "problems": looked.problems,
        "samples": evaluation.samples,
        "temperature": evaluation.temperature,
        "max_steps": looks.task().settings.max_steps,
    }
    fitted = fit_epsilon(delta_r, looked.correct[stepped, 1:], rule, target, wanted, about, lengths)
    measured = ~np.isnan(delta_r).all(0)
    return FittedStop(
        fitted,
        fitted.save(folder),
        step_means(delta_r[:, measured], plans[:, measured]),
        (np.flatnonzero(measured) + 1).tolist(),
        stop_figures(delta_r, rule, fitted.epsilon, lengths, bins=20),
        int(stepped.sum()),
        looked.left_out + int((~stepped).sum()),
    )


def compare_stopping(
    looks: CappedLooks, epsilons: Mapping[Kind, float], progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """Return the outcomes of all rules on test problems; see `visual_metrics.compared`.

    Args:
        looks: The policy, the verifier, and the conversations.
        epsilons: ε of the verifier's rules; empty takes what was stored beside the verifier.
        progress: Called after each batch.

    Raises:
        DataError: There is no ε.
    """
    if not epsilons:
        stored = StopCalibration.load(Path(looks.how.verifier).expanduser())
        epsilons = {stored.rule: stored.epsilon}
    looked = looks.hold("test", progress)
    held = {"held": len(looked.lengths), "left_out": looked.left_out}
    return {**compared(looked, epsilons), "conversations": held}


logger = logging.getLogger(__name__)

LOOKS, VERIFIER, LOOKING = "looks", "verifier", "looking"
LEAKS, LEARNT = "leaks.json", "learnt.json"
"""The folders in a run's folder, and the files about words and about the pairs that are learnt."""


def train_stopping(
    recipe: Recipe,
    resume: bool = False,
    on_step: StepCallback | None = None,
    on_phase: Any = None,
    data_only: bool = False,
) -> Path:
    """Train a verifier as ``recipe.stopping`` says. Returns the run's folder.

    Each part goes on where it was stopped: conversations are in journals, pairs follow from them, and DPO
    goes on from its checkpoint.

    Args:
        recipe: Its policy is the reasoner, and with an adapter becomes the verifier; its task is looked at.
        resume: Whether to go on with what the folder holds; otherwise it is deleted.
        on_step: Called after every training step.
        on_phase: Called as ``on_phase(name, done, total)`` while conversations are held.
        data_only: Whether to end when the pairs are made.

    Where a teacher looks, ε is not chosen: the model that will look is not known yet.

    Raises:
        ConfigError: The recipe's method does not learn from pairs; its policy has no adapter; several
            processes were started; or the folder holds conversations of other settings, or a verifier that
            has begun to learn from other pairs.
        DataError: No pair could be made; the message says what was left out, and why.
        ServerError: The teacher or the judge fails; called again, the run goes on.
    """
    how = recipe.stopping
    if how is None:
        raise ConfigError(f"recipe {recipe.name} has no section `stopping`")
    if recipe.method.name != "dpo":
        raise ConfigError(f"stopping: method {recipe.method.name} learns from no pairs; set method.name=dpo")
    if recipe.policy.lora is None:
        raise ConfigError(
            "stopping: a verifier is compared with the model below its adapter; set policy.lora"
        )
    if ranks.count() > 1:
        raise ConfigError("stopping: conversations are held by one process; start one")
    recipe_task(recipe).check_files("train")  # what it refuses costs an earlier run nothing
    folder = recipe.folder
    pairs = NamedConfig(name="pairs", options={"train": str(folder / LOOKS / PAIRS)})
    changed = {"task": pairs, "evaluation_task": {}, "stopping": None, "output": str(folder / VERIFIER)}
    with held_folder(folder):
        if not resume:
            clear_run(folder)
            for name in (LOOKS, VERIFIER, LOOKING):
                shutil.rmtree(folder / name, ignore_errors=True)
        on_step = noting_recipe(recipe, folder, resume, on_step)
        _make_pairs(recipe, how, on_phase)
        if data_only:
            write_recipe(recipe, folder)
            return folder
        begun = (folder / VERIFIER / RECIPE_FILE).is_file()
        _note_pairs(folder, resume and begun)
        train(recipe.model_copy(update=changed), resume and begun, on_step, on_phase)
        write_recipe(recipe, folder)
        if how.teacher is not None:
            return folder
        verifier = folder / VERIFIER / MODEL_FOLDER
        looks = CappedLooks(recipe, ListenerConfig(model=recipe.policy.path, verifier=str(verifier)))
        calibrate_stopping(looks, how.rule, *how.target, of_phase(on_phase, "when it has seen enough"))
    return folder


def _make_pairs(recipe: Recipe, how: StoppingConfig, on_phase: Any) -> None:
    """Hold conversations, judge and pair them, and say whether words tell the sides apart."""
    folder = recipe.folder / LOOKS
    reasoner = recipe.model_copy(update={"policy": recipe.policy.for_model(recipe.policy.path)})
    teacher = _model_of(how.teacher, temperature=how.temperature, max_tokens=recipe.sampling.max_new_tokens)
    looks = of_phase(on_phase, "what is looked at")
    collect_looks(reasoner, teacher, folder, how.problems, how.samples, how.shots, progress=looks)
    ways: dict[Way, int] = {"branched": how.branched, "induced": how.induced, "hurried": how.hurried}
    if how.judge is not None and any(ways.values()):
        _judge(how, folder, on_phase)  # only from what is right others go on
    for way, samples in ways.items():
        if samples:
            branch_looks(reasoner, teacher, folder, way, samples, progress=of_phase(on_phase, way))
    if how.judge is not None:
        _judge(how, folder, on_phase)
    pairing = Pairing(wasteful=how.pairs == "wrong+wasteful")
    sets = make_sets(folder, pairing, judged=how.judge is not None)
    if not sets.pairs:
        reasons = ", ".join(f"{count}: {why}" for why, count in sets.pairs_dropped.items())
        raise DataError(
            f"{folder}: no pair came of {sets.traces} conversations ({reasons or 'none was left out'}); more "
            "problems or a higher temperature (stopping.problems, stopping.temperature) give more"
        )
    try:
        leaks = leak_test(read_pairs(folder), words=10)
    except DataError as error:
        logger.warning("whether words alone tell the better side is not known: %s", error)
        return
    write_json(recipe.folder / LEAKS, asdict(leaks) | {"passes": leaks.passes})
    if not leaks.passes:
        text = "words alone tell the better side of %.0f %% of the pairs, and %.0f %% may be; see leaks.json"
        logger.warning(text, 100 * leaks.accuracy, 100 * MOST)


def _note_pairs(folder: Path, begun: bool) -> None:
    """Keep the digest of the pairs that are learnt.

    Raises:
        ConfigError: The verifier has begun to learn from others.
    """
    path, noted = folder / LOOKS / PAIRS, folder / LEARNT
    now = {PAIRS: file_digests([path])[path]}
    if begun and noted.is_file() and json.loads(read_regular(noted)) != now:
        raise ConfigError(
            f"{path}: the pairs are no longer those from which {folder / VERIFIER} has begun to learn. Set "
            f"the section `stopping` back, or delete that folder to learn anew"
        )
    write_json(noted, now)


def _judge(how: StoppingConfig, folder: Path, on_phase: Any) -> None:
    judged = judge_looks(
        folder, _model_of(how.judge), how.votes, of_phase(on_phase, "answers that are judged")
    )
    if judged.again:
        raise ServerError(
            f"{judged.unasked} answers could not be judged; the first: {judged.reason}. All others are "
            "stored: the same call asks for these, and goes on"
        )
    if judged.unasked:
        text = "%d answers could not be judged and make no pair; the first: %s"
        logger.warning(text, judged.unasked, judged.reason)


def _model_of(address: str | None, **how: Any) -> TeacherConfig:
    """A model behind a server, ``URL#MODEL``; the recipe's own policy where there is none."""
    if address is None:
        return TeacherConfig(own=True, **how)
    server, _, model = address.partition("#")
    return TeacherConfig(server=server, model=model, **how)
