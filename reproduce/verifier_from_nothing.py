"""The table of the grid `adpo-digits-blind`: what arms' scores are worth, and verifiers that cost nothing.

    python -m reproduce.grid adpo-digits-blind --jobs 2
    python -m reproduce.verifier_from_nothing runs/adpo-digits-blind --start builtin:digits-blind

Each row is the mean over an arm's seeds, with its 95 % interval over problems and seeds. Every verifier reads
the same answers: those of the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduce.matrix import judge_samples
from reproduce.scripts import script
from reproduce.statistics import MeasuredRun, difference, measure_run, pooled
from selfverify.core.files import write_json
from selfverify.core.problem import Problem
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.metrics import MIXED_BOTH, SampleTable, statistics
from selfverify.evaluation.samples import StoredSample, read_samples, with_rule_scores
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task
from selfverify.verifiers.policy_verifiers import PolicyJudge

COLUMNS = {
    "written AUC": ("sampled", "within_problem_auc"),
    "soft AUC": ("soft", "within_problem_auc"),
    "written AUC where the text rule passes": ("passing", "within_problem_auc"),
    "best@8 by written": ("sampled", "best@8"),
    "vote@8 by written": ("sampled", "weighted@8"),
    "majority@8": ("sampled", "majority@8"),
    "pass@1": ("sampled", "pass@1"),
}
CHANGES = {
    "written AUC − before": ("gain", "within_problem_auc"),
    "on problems mixed both times": ("gain", MIXED_BOTH),
    "`expected` − it: written AUC": ("expected_ahead", "within_problem_auc"),
    "on problems that both leave mixed": ("expected_ahead", MIXED_BOTH),
}
VERIFIERS = {
    "text rule": "text_rule",
    "text rule that compares with the transcription": "text_rule_read",
    "log-prob of the answer": "logprob",
    "the start's score": "start",
}


def all_scores(
    file: Path, task: Task, problems: Mapping[str, Problem], start: Policy | None
) -> list[StoredSample]:
    """Return a store's samples with all scores, those of rules and of the start's policy among them.

    Args:
        file: The store.
        task: The task.
        problems: The held-out problems by id.
        start: The policy whose scores of the same answers are read; None leaves them out.
    """
    found = with_rule_scores(read_samples(file)[1], task, problems)
    if start is not None:
        judged = judge_samples(PolicyJudge(start), task, [*problems.values()], found)
        for sample, score in zip(found, judged, strict=True):
            sample.scores["start"] = score
    for sample in found:
        passes = sample.scores.get("text_rule") == 1
        sample.scores["passing"] = sample.scores.get("sampled") if passes else None
    return found


def runs_of(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield each finished run's arm, seed and samples."""
    for run in sorted(folder.glob("*/seed-*"), key=lambda path: (path.parent.name, int(path.name[5:]))):
        if (run / "metrics.json").is_file():
            yield run.parent.name, int(run.name[5:]), run / "samples-after.jsonl"


def tables(
    study: Annotated[Path, typer.Argument(help="The folder of the study `adpo-digits-blind`.")],
    start: Annotated[
        str | None, typer.Option(help="A policy whose scores of the same answers are read, too.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A file for all values, as JSON.")] = None,
) -> None:
    """Print what the scores of the study's arms are worth, and verifiers that cost nothing."""
    folder = study / "pick"
    recipe = load_recipe(str(folder / "before" / "recipe.yaml"), [])
    task = make_task(recipe.task.name, **recipe.task.options)
    held_out = HeldOut(task, recipe.evaluation)
    problems = {p.id: p for p in held_out.make(range(held_out.total)).values()}
    policy = Policy.load(start, device="cpu") if start else None
    shown = {title: name for title, name in VERIFIERS.items() if start or name != "start"}
    metrics = {metric for _, metric in COLUMNS.values()}
    arms: dict[str, dict[str, dict[int, MeasuredRun]]] = {}
    for arm, seed, file in [("before", 0, folder / "before" / "samples.jsonl"), *runs_of(folder)]:
        samples = all_scores(file, task, problems, policy)
        for reading in ("sampled", "soft", "passing", *shown.values()):
            found = statistics(SampleTable.from_samples(samples, [*problems], headline=reading))
            run = measure_run({name: found[name] for name in metrics & found.keys()})
            arms.setdefault(arm, {}).setdefault(reading, {})[seed] = run
    changes = {}
    for arm in list(arms)[1:]:
        own, best = arms[arm]["sampled"], arms.get("expected", arms[arm])["sampled"]
        gained = difference(own, dict.fromkeys(own, arms["before"]["sampled"][0]))
        changes[arm] = {"gain": gained, "expected_ahead": {} if own is best else difference(best, own)}
    values = {arm: {r: pooled(by_seed) for r, by_seed in of.items()} for arm, of in arms.items()}
    print(f"{len(problems)} problems x 8\n\n| arm | seeds | {' | '.join(COLUMNS)} |")
    print(f"|---|---|{'---|' * len(COLUMNS)}")
    for arm, of in values.items():
        cells = [cell(of[reading][metric]) for reading, metric in COLUMNS.values()]
        print(f"| {arm} | {len(arms[arm]['sampled'])} | {' | '.join(cells)} |")
    print(f"\n| AUC, best@8 on the arm's answers | {' | '.join(shown)} |\n|---|{'---|' * len(shown)}")
    for arm, of in values.items():
        cells = [f"{cell(of[n]['within_problem_auc'])}, {cell(of[n]['best@8'])}" for n in shown.values()]
        print(f"| {arm} | {' | '.join(cells)} |")
    print(f"\n| difference | {' | '.join(CHANGES)} |\n|---|{'---|' * len(CHANGES)}")
    for arm, of in changes.items():
        cells = [cell(of[side].get(metric), "difference") for side, metric in CHANGES.values()]
        print(f"| {arm} | {' | '.join(cells)} |")
    if output:
        write_json(output, {"problems": len(problems), "samples": 8, "arms": values, "changes": changes})


def cell(figure: Mapping[str, Any] | None, name: str = "mean") -> str:
    """Return a mean, or a difference, with its interval, three digits each, as Markdown."""
    if figure is None or figure["interval"] is None:
        return "–"
    sign, between = ("+", " to ") if name == "difference" else ("", "–")
    value, low, high = (f"{n:{sign}.3f}" for n in (figure[name], *figure["interval"]))
    return f"{value} ({low}{between}{high})".replace("0.", ".").replace("-", "−")


app = script(tables)

if __name__ == "__main__":
    app()
