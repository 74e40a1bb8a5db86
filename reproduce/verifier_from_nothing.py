"""The table of the grid `adpo-digits-blind`: what arms' scores are worth, and verifiers that cost nothing.

    python -m reproduce.grid adpo-digits-blind --jobs 2
    python -m reproduce.verifier_from_nothing runs/adpo-digits-blind --start builtin:digits-blind

Each row is the mean over an arm's seeds, with its 95 % interval over problems and seeds. Every verifier reads
the same answers: those of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduce.judged_samples import stored_scores
from reproduce.scripts import script
from reproduce.statistics import MeasuredRun, difference, measure_run, pooled
from reproduce.tables import TESTED, Column, difference_table, figure_table
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

AUC, BEST = "within_problem_auc", "best@8"
COLUMNS = [
    Column(("sampled", AUC), "written AUC", percent=False),
    Column(("soft", AUC), "soft AUC", percent=False),
    Column(("passing", AUC), "written AUC where the text rule passes", percent=False),
    Column(("sampled", BEST), "best@8 by written"),
    Column(("sampled", "weighted@8"), "vote@8 by written"),
    Column(("sampled", "majority@8"), "majority@8"),
    Column(("sampled", "pass@1"), "pass@1"),
]
CHANGES = [
    Column(("gain", AUC), "written AUC − before", percent=False),
    Column(("gain", MIXED_BOTH), "on problems mixed both times", percent=False),
    Column(("expected_ahead", AUC), "`expected` − it: written AUC", percent=False),
    Column(("expected_ahead", MIXED_BOTH), "on problems that both leave mixed", percent=False),
]
VERIFIERS = {
    "text_rule": "text rule",
    "text_rule_read": "text rule that compares with the transcription",
    "logprob": "log-prob of the answer",
    "start": "the start's score",
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
    header, found = read_samples(file)
    found = with_rule_scores(found, task, problems)
    if start is not None:
        settings = {"judge": start.fingerprint(), "samples": header["weights"]}
        journal, judge = file.with_name(f"{file.stem}-by-start.jsonl"), PolicyJudge(start)
        judged = stored_scores(journal, settings, lambda: judge, task, [*problems.values()], found, 64)
        for sample, score in zip(found, judged[""], strict=True):
            sample.scores["start"] = score
    for sample in found:
        passes = sample.scores.get("text_rule") == 1
        sample.scores["passing"] = sample.scores.get("sampled") if passes else None
    return found


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
    shown = {name: title for name, title in VERIFIERS.items() if start or name != "start"}
    metrics = {AUC, BEST, "weighted@8", "majority@8", "pass@1"}
    arms: dict[str, dict[str, dict[int, MeasuredRun]]] = {}
    files = {("before", 0): folder / "before" / "samples.jsonl"}
    for done in sorted(folder.glob("*/seed-*/metrics.json")):
        files[done.parents[1].name, int(done.parent.name[5:])] = done.with_name("samples-after.jsonl")
    for (arm, seed), file in files.items():
        samples = all_scores(file, task, problems, policy)
        for reading in ("sampled", "soft", "passing", *shown):
            found = statistics(SampleTable(samples, [*problems], headline=reading))
            run = measure_run({name: found[name] for name in metrics & found.keys()})
            arms.setdefault(arm, {}).setdefault(reading, {})[seed] = run
    changes = {}
    for arm in list(arms)[1:]:
        own, best = arms[arm]["sampled"], arms.get("expected", arms[arm])["sampled"]
        gained = difference(own, dict.fromkeys(own, arms["before"]["sampled"][0]))
        changes[arm] = {"gain": gained, "expected_ahead": {} if own is best else difference(best, own)}
    values = {arm: {r: pooled(by_seed) for r, by_seed in of.items()} for arm, of in arms.items()}
    rows = {(arm, str(len(arms[arm]["sampled"]))): _flat(of) for arm, of in values.items()}
    told = [
        Column((name, metric), f"{title}: {short}", percent=metric == BEST)
        for name, title in shown.items()
        for metric, short in ((AUC, "AUC"), (BEST, BEST))
    ]
    typer.echo(f"{len(problems)} problems x 8\n\n{figure_table(['arm', 'seeds'], rows, COLUMNS)}")
    typer.echo(f"\nVerifiers of the arm's answers:\n\n{figure_table(['arm', 'seeds'], rows, told)}")
    table, count = difference_table(["arm"], {(arm,): _flat(of) for arm, of in changes.items()}, CHANGES)
    typer.echo(f"\nDifferences {TESTED.format(count=count)}\n\n{table}")
    if output:
        write_json(output, {"problems": len(problems), "samples": 8, "arms": values, "changes": changes})


def _flat(of: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(name, metric): figure for name, own in of.items() for metric, figure in own.items()}


app = script(tables)

if __name__ == "__main__":
    app()
