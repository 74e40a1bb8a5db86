"""`selfverify quickstart`: train the built-in policy with ADPO, measure it before and after, show it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selfverify.core.atomic_files import write_json
from selfverify.core.differences import differences
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe
from selfverify.experiments.run import build, measure, train
from selfverify.experiments.run_folder import held_folder
from selfverify.learner.progress import TrainingProgress
from selfverify.policy.policy import Policy
from selfverify.reports.report import write_overview, write_report

PAPER_DECODING = {"temperature": 0.2, "top_p": 0.99}
"""How ADPO §4.1 samples at evaluation."""

COOL_PROBLEMS = 128
"""How many held-out problems are also measured that way. More of them would cost the quickstart a minute."""

FAST = (
    "learner.steps=8",
    "learner.warmup_steps=2",
    "learner.groups_per_step=8",
    "evaluation.problems=48",
    "evaluation.samples=8",
)

ROWS = (
    ("pass@1", "pass@1", "one sample"),
    ("majority@8", "majority@8", "most frequent of 8"),
    ("best@8", "best@8", "highest own score of 8"),
    ("weighted@8", "weighted@8", "most votes of 8, weighted by score"),
    ("oracle@8", "oracle@8", "any of 8 right"),
    ("within-problem AUC", "within_problem_auc", "right above wrong, same problem"),
    ("AUC", "auc", "right above wrong, all samples"),
    ("AP", "ap", "average precision of the score"),
    ("format rate", "format_rate", "well-formed responses"),
)


def quickstart(output: Path, seed: int = 0, fast: bool = False, overwrite: bool = False) -> Path:
    """Run the built-in experiment and return the report's path.

    Called again, it goes on where it was stopped; what is finished is not done again.

    Args:
        output: The run's folder. `selfverify.experiments.run.train` says what is in it.
        seed: Decides problems and samples.
        fast: Whether to train for a few steps only, which takes about a minute.
        overwrite: Whether to delete the run that the folder already holds, and to start over.

    Raises:
        ConfigError: The folder holds a run with other settings, or another process is writing into it.
    """
    console = Console()
    overrides = [f"seed={seed}", f"output={output}", *(FAST if fast else ())]
    recipe = load_recipe("quickstart", overrides)
    console.print(
        f"ADPO on [bold]{recipe.task.name}[/bold]: {recipe.learner.steps} steps of "
        f"{recipe.learner.groups_per_step} problems x {recipe.sampling.group_size} samples, then "
        f"{recipe.evaluation.problems} held-out problems. Everything goes to {output}."
    )
    with held_folder(output):
        if not overwrite and (output / RECIPE_FILE).is_file():
            _refuse_other(load_recipe(output), recipe)
            console.print(f"It goes on with what is in {output} already; --overwrite starts over.")
        metrics = _trained_and_measured(recipe, output, resume=not overwrite)
    console.print(_table(metrics))
    write_overview(output, output / "overview.png")
    report = write_report([output], output / "report.html")
    console.print(f"Open {report} to see curves, score histograms and the problems themselves.")
    return report


def _refuse_other(held: Recipe, wanted: Recipe) -> None:
    if changed := differences(held.model_dump(mode="json"), wanted.model_dump(mode="json")):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ConfigError(
            f"{wanted.output} holds a run with other settings: {'; '.join(changed[:3])}{more}. --output "
            "OTHER writes elsewhere, --overwrite deletes it and starts over"
        )


def _trained_and_measured(recipe: Recipe, output: Path, resume: bool) -> dict[str, Any]:
    with TrainingProgress() as progress:
        train(recipe, resume, progress.on_step, progress.on_phase)
        metrics: dict[str, Any] = json.loads((output / "metrics.json").read_text())
        metrics["paper_decoding"] = _paper_decoding(recipe, output, progress)
    write_json(output / "metrics.json", metrics)
    return metrics


def _paper_decoding(recipe: Recipe, output: Path, progress: TrainingProgress) -> dict[str, Any]:
    """Measure the policy before and after training at the paper's evaluation temperature."""
    settings = PAPER_DECODING | {"problems": min(COOL_PROBLEMS, recipe.evaluation.problems or COOL_PROBLEMS)}
    cool = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=settings)})
    start, task, _ = build(recipe)
    trained = Policy.load(recipe.policy.for_model(str(output / "model")))
    results: dict[str, Any] = {"settings": settings}
    for when, policy in (("before", start), ("after", trained)):
        show = partial(progress.on_phase, f"{when}, T = 0.2")
        results[when] = measure(policy, task, cool, output / f"samples-{when}-paper.jsonl", when, show)
    return results


def _cell(summary: dict[str, Any], name: str) -> str:
    value = summary.get(name)
    if value is None:
        return "-"
    low_high = summary.get("intervals", {}).get(name)
    spread = f"  [dim]{low_high[0]:.3f} to {low_high[1]:.3f}[/dim]" if low_high else ""
    return f"{value:.3f}{spread}"


def _table(metrics: dict[str, Any]) -> Table:
    table = Table(title="Held-out problems, T = 1, soft scores, 95 % intervals", title_justify="left")
    for name in ("", "before", "after", ""):
        table.add_column(name)
    for label, key, meaning in ROWS:
        table.add_row(
            label, _cell(metrics["before"], key), _cell(metrics["after"], key), f"[dim]{meaning}[/dim]"
        )
    return table
