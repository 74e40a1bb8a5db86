"""`selfverify quickstart`: train a built-in policy as a paper does, measure it, and report what happened."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from selfverify.core.errors import ConfigError, __version__
from selfverify.core.files import differences, write_json
from selfverify.evaluation.breakdown import paired_metrics
from selfverify.evaluation.headline import Headline, headline
from selfverify.evaluation.metrics import paired_difference
from selfverify.evaluation.samples import read_samples, with_rule_scores
from selfverify.experiments.looks.capped_looks import CappedLooks, compare_stopping
from selfverify.experiments.looks.train_stopping import LOOKING, VERIFIER, train_stopping
from selfverify.experiments.quickstart.showcases import SHOWCASES, Paper, Showcase
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe
from selfverify.experiments.registry import TASKS
from selfverify.experiments.run import evaluate_recipe, recipe_task, train
from selfverify.experiments.run_folder import held_folder
from selfverify.reports.report import write_overview, write_report
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.trainer.logging import TrainingProgress


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
        paper: Whose effect is shown.
        output: The run's folder, by default ``runs/quickstart`` or ``runs/quickstart-PAPER``.
            `selfverify.experiments.run.train` and `selfverify.experiments.looks.train_stopping` say what is
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
            _refuse_other(load_recipe(folder), recipe)
            console.print(f"It goes on with what is in {folder} already; --overwrite starts over.")
        with TrainingProgress() as progress:
            run = _trained if recipe.stopping is None else _looked
            metrics, table = run(recipe, shown, not overwrite, progress)
        write_json(folder / "metrics.json", metrics | {"headline": {"title": shown.title, **asdict(table)}})
    console.print(table.as_table(shown.title))
    for note in table.notes:
        console.print(note, markup=False, highlight=False)
    if paper == "adpo":
        write_overview(folder, folder / "overview.png")
    report = write_report([folder], folder / "report.html", TASKS)
    console.print(f"all figures: {folder / 'metrics.json'}", soft_wrap=True, markup=False, highlight=False)
    return report


def _refuse_other(held: Recipe, wanted: Recipe) -> None:
    if changed := differences(held.model_dump(mode="json"), wanted.model_dump(mode="json")):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ConfigError(
            f"{wanted.output} holds a run with other settings: {'; '.join(changed[:3])}{more}. --output "
            "OTHER writes elsewhere, --overwrite deletes it and starts over"
        )


def _trained(
    recipe: Recipe, shown: Showcase, resume: bool, progress: TrainingProgress
) -> tuple[dict[str, Any], Headline]:
    """Train, measured before and after; returns all figures, and those that come first."""
    folder = train(recipe, resume, progress.on_step, progress.on_phase)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    task, evaluation = recipe_task(recipe, measured=True), recipe.evaluation
    made = [task.problem(evaluation.split, 0, index) for index in range(evaluation.problems or 0)]
    problems = {problem.id: problem for problem in made}
    before, after = (
        with_rule_scores(read_samples(folder / f"samples-{when}.jsonl")[1], task, problems)
        for when in ("before", "after")
    )
    changes = paired_difference(before, after, evaluation.score) | paired_metrics(before, after, task.metrics)
    table = headline(metrics["after"], metrics["before"], changes, shown.stored, shown.notes)
    return metrics, table


def _looked(
    recipe: Recipe, shown: Showcase, resume: bool, progress: TrainingProgress
) -> tuple[dict[str, Any], Headline]:
    """Train a verifier of when to stop looking, compare it with other rules, and let it end conversations."""
    folder = train_stopping(recipe, resume, progress.on_step, progress.on_phase)
    verifier = str(folder / VERIFIER / MODEL_FOLDER)
    looks = CappedLooks(recipe, recipe.policy.path, verifier, output=folder / LOOKING)
    found = compare_stopping(looks, {}, partial(progress.on_phase, "what ends looking"))
    options = recipe.task.options | {"stop": "verifier", "verifier": verifier}
    ended = recipe.model_copy(
        update={
            "policy": recipe.policy.for_model(recipe.policy.path),
            "task": recipe.task.model_copy(update={"options": options}),
        }
    )
    shown_by = partial(progress.on_phase, "with the verifier")
    summary = evaluate_recipe(ended, output=folder, progress=shown_by)
    metrics = {"after": summary, "stopping": found, "settings": recipe.model_dump(mode="json")}
    return metrics | {"version": __version__}, headline(found, stored=shown.stored, notes=shown.notes)
