"""`selfverify quickstart`: train a built-in policy as a paper does, measure it, report what happened.

``showcases.yaml`` says what is shown of each paper: which recipe, how it is shortened, what qualifies it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console

from selfverify.core.errors import ConfigError, __version__
from selfverify.core.files import differences, write_json
from selfverify.evaluation.headline import Headline, Stored, headline
from selfverify.evaluation.metrics import paired_difference
from selfverify.evaluation.samples import read_samples, with_rule_scores
from selfverify.experiments.command_config import ListenerConfig
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe, recipe_task
from selfverify.experiments.recipe_yaml import load_yaml
from selfverify.experiments.registry import TASKS
from selfverify.experiments.run import evaluate_recipe, held_folder, train
from selfverify.experiments.train_stopping import VERIFIER, CappedLooks, compare_stopping, train_stopping
from selfverify.reports.report import write_report
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.trainer.logging import TrainingProgress

Paper = Literal["adpo", "adapo", "smartsnap", "vts-v"]


@dataclass(frozen=True, slots=True)
class Showcase:
    """One paper's effect in a few minutes on two cores.

    Args:
        title: The trained ability.
        recipe: The recipe.
        changes: Overrides of the recipe, so that it takes no more than ten minutes.
        fast: Further overrides of a fast run, so that it takes about a minute.
        stored: The rows that qualify the effect, where measuring them would take longer than that.
        notes: Sentences that are needed to read the figures.
    """

    title: str
    recipe: str
    changes: tuple[str, ...] = ()
    fast: tuple[str, ...] = ()
    stored: tuple[Stored, ...] = ()
    notes: tuple[str, ...] = ()


SHOWCASES = TypeAdapter(dict[Paper, Showcase]).validate_python(
    load_yaml(Path(__file__).with_name("showcases.yaml").read_bytes(), "showcases.yaml")
)
"""The demonstration of each paper."""


def quickstart(
    paper: Paper = "adpo",
    output: Path | None = None,
    seed: int = 0,
    fast: bool = False,
    overwrite: bool = False,
) -> Path:
    """Show a paper's effect, and return the report's path.

    Called again, it goes on where it was stopped; what is finished is not done again.

    Args:
        paper: The paper whose effect is shown.
        output: The run's folder, by default ``runs/quickstart`` or ``runs/quickstart-PAPER``.
            `selfverify.experiments.run.train` and `selfverify.experiments.train_stopping` say what is
            in it.
        seed: Decides problems and samples.
        fast: Whether to train for a few steps only, which takes about a minute.
        overwrite: Whether to delete the run that the folder already holds, and to start over.

    Raises:
        ConfigError: The folder holds a run with other settings, or another process is writing into it.
    """
    console, shown = Console(), SHOWCASES[paper]
    folder = output or Path("runs", "quickstart" if paper == "adpo" else f"quickstart-{paper}")
    changes = [*shown.changes, *(shown.fast if fast else ())]
    recipe = load_recipe(shown.recipe, [*changes, f"seed={seed}", f"output={folder}"])
    console.print(f"{shown.title}. Everything goes to {folder}.", markup=False, highlight=False)
    with held_folder(folder):
        if not overwrite and (folder / RECIPE_FILE).is_file():
            held = load_recipe(folder).model_dump(mode="json")
            if changed := differences(held, recipe.model_dump(mode="json")):
                more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
                raise ConfigError(
                    f"{folder} holds a run with other settings: {'; '.join(changed[:3])}{more}; "
                    "choose another folder, or overwrite it"
                )
            console.print(f"It goes on with what is in {folder} already.")
        with TrainingProgress() as progress:
            run = _trained if recipe.stopping is None else _looked
            metrics, table = run(recipe, shown, not overwrite, progress)
        write_json(folder / "metrics.json", metrics | {"headline": {"title": shown.title, **asdict(table)}})
    console.print(table.as_table(shown.title))
    for note in table.notes:
        console.print(note, markup=False, highlight=False)
    report = write_report([folder], folder / "report.html", TASKS)
    console.print(f"all figures: {folder / 'metrics.json'}", soft_wrap=True, markup=False, highlight=False)
    return report


Told = tuple[dict[str, Any], Headline]
"""All figures, and those that come first."""


def _trained(recipe: Recipe, shown: Showcase, resume: bool, progress: TrainingProgress) -> Told:
    """Train, measured before and after; returns all figures, and those that come first."""
    folder = train(recipe, resume, progress.on_step, progress.on_phase)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    task, evaluation = recipe_task(recipe, measured=True), recipe.evaluation
    made = [task.problem(evaluation.split, 0, index) for index in range(evaluation.problems or 0)]
    problems = {problem.id: problem for problem in made}
    stored = [read_samples(folder / f"samples-{when}.jsonl")[1] for when in ("before", "after")]
    before, after = (with_rule_scores(samples, task, problems) for samples in stored)
    changes = paired_difference(before, after, evaluation.score, task.metrics)
    table = headline(metrics["after"], metrics["before"], changes, shown.stored, shown.notes)
    return metrics, table


def _looked(recipe: Recipe, shown: Showcase, resume: bool, progress: TrainingProgress) -> Told:
    """Train a verifier of when to stop looking, compare it with other rules, and let it end conversations."""
    folder = train_stopping(recipe, resume, progress.on_step, progress.on_phase)
    verifier = str(folder / VERIFIER / MODEL_FOLDER)
    looks = CappedLooks(recipe, ListenerConfig(model=recipe.policy.path, verifier=verifier))
    found = compare_stopping(looks, {}, partial(progress.on_phase, "what ends looking"))
    options = recipe.task.options | {"stop": "verifier", "verifier": verifier}
    task = recipe.task.model_copy(update={"options": options})
    ended = recipe.model_copy(update={"policy": recipe.policy.for_model(recipe.policy.path), "task": task})
    progressing = partial(progress.on_phase, "with the verifier")
    summary = evaluate_recipe(ended, output=folder, progress=progressing)
    metrics = {"after": summary, "stopping": found, "settings": recipe.model_dump(mode="json")}
    return metrics | {"version": __version__}, headline(found, stored=shown.stored, notes=shown.notes)
