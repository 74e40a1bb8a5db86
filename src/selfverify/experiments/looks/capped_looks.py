"""A stopping verifier's ε, and what its rules come to: on conversations that were held to the cap."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import file_digests, naming
from selfverify.evaluation.samples import Progress
from selfverify.evaluation.visual_metrics import (
    VERIFIER_WEIGHTS,
    CappedArrays,
    as_arrays,
    compared,
    run_to_cap,
)
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task, start_processes
from selfverify.experiments.run_folder import held_folder
from selfverify.policy.policy import Policy
from selfverify.visual.config import VisualConfig
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
from selfverify.visual.task import VisualTask, VisualToolTask

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
    """Who looks, who listens, and where the conversations are kept.

    Args:
        recipe: Names the task and the evaluation's settings.
        model: The reasoner, in place of the recipe's policy.
        verifier: The verifier's folder.
        base: What it was trained from; None is the model below its adapter.
        output: The folder of the journals; None is ``looking`` in the recipe's.
        tools: For a task that does not look by itself: the tools; empty is all that are available.
        max_steps: For such a task: the cap.
    """

    recipe: Recipe
    model: str | None
    verifier: str
    base: str | None = None
    output: Path | None = None
    tools: tuple[str, ...] = ()
    max_steps: int | None = None

    def task(self) -> VisualTask:
        """The task, whose conversations no rule ends, and neither does the model.

        Raises:
            ConfigError: Tools or a cap are given for a task that has its own.
        """
        task = recipe_task(self.recipe, measured=True)
        if not isinstance(task, VisualTask):
            given = {} if self.max_steps is None else {"max_steps": self.max_steps}
            task = VisualToolTask(task, VisualConfig(tools=[*self.tools], **given))
        elif self.tools or self.max_steps is not None:
            raise ConfigError(
                f"task {task.name} looks in its own way: set the cap with task.max_steps=N, and leave --tool "
                "and --max-steps out"
            )
        if not task.judges:
            raise ConfigError(f"task {task.name} knows no right answers, so that there is nothing to compare")
        named = {"verifier": self.verifier, "verifier_base": self.base}
        return task.looking_by(
            {**named, "stop": "never", "terminate": "refuse", "rule": None, "epsilon": None}
        )

    def hold(self, split: Literal["validation", "test"], progress: Progress | None = None) -> CappedArrays:
        """Hold the conversations of a split, or go on with them, and return all.

        Raises:
            ConfigError: The verifier cannot be loaded, or the journal is one of other settings.
            DataError: A problem cannot be made, or no conversation can be used.
        """
        start_processes(self.recipe)
        settings = self.recipe.policy.for_model(self.model) if self.model else self.recipe.policy
        folder = self.output or self.recipe.folder / "looking"
        task = self.task()
        with held_folder(folder):
            rows = run_to_cap(
                Policy.load(settings),
                task,
                self.recipe.evaluation.model_copy(update={"split": split}),
                folder / CAP_FILE.format(split=split),
                max_new_tokens=self.recipe.sampling.max_new_tokens,
                describe={"model": settings.path, VERIFIER_WEIGHTS: weights_digest(self.verifier)},
                progress=progress,
            )
        return as_arrays(rows)


@dataclass(frozen=True, slots=True)
class FittedStop:
    """What a calibration has come to.

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
        """The same as lists and numbers."""

        def listed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: listed(one) for name, one in value.items()}
            if isinstance(value, np.ndarray):
                return [None if np.isnan(one) else one for one in value.tolist()]
            return str(value) if isinstance(value, Path) else value

        plain: dict[str, Any] = listed(asdict(self))
        return plain


def calibrate_stopping(
    looks: CappedLooks,
    rule: Kind,
    target: Target,
    wanted: float,
    progress: Progress | None = None,
) -> FittedStop:
    """Choose ε on validation problems and store it beside the verifier.

    Args:
        looks: Who looks and who listens.
        rule: |Δr| < ε (``absolute``) or Δr < ε (``signed``).
        target: What is to be held.
        wanted: See `fit_epsilon`.
        progress: Called after each batch.

    Raises:
        ConfigError: The verifier is no folder here, so that nothing can be stored beside it; or no ε holds
            the target.
        DataError: Nothing was measured.
    """
    folder = Path(looks.verifier).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{looks.verifier} is no folder here; ε is stored beside the verifier's weights")
    looked = looks.hold("validation", progress)
    stepped = looked.lengths > 0
    if not stepped.any():
        raise DataError(
            f"in none of {len(stepped)} conversations was there a step; does the model know the tools?"
        )
    delta_r, plans, lengths = looked.delta_r[stepped], looked.delta_r_plan[stepped], looked.lengths[stepped]
    evaluation = looks.recipe.evaluation
    about = {
        "reasoner": looks.model or looks.recipe.policy.path,
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
    """What all rules come to on test problems; see `stop_outcomes.compared`.

    Args:
        looks: Who looks and who listens.
        epsilons: ε of the verifier's rules; empty takes what was stored beside the verifier.
        progress: Called after each batch.

    Raises:
        DataError: There is no ε.
    """
    if not epsilons:
        stored = StopCalibration.load(Path(looks.verifier).expanduser())
        epsilons = {stored.rule: stored.epsilon}
    looked = looks.hold("test", progress)
    found = compared(looked, epsilons)
    return {**found, "conversations": {"held": len(looked.lengths), "left_out": looked.left_out}}
