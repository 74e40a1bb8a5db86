"""The table of the grid `adpo-digits-blind`: what arms' scores are worth, and verifiers that cost nothing.

    python -m reproduce.grid adpo-digits-blind --jobs 2
    python -m reproduce.verifier_from_nothing runs/adpo-digits-blind --start builtin:digits-blind

Each row is the mean over an arm's seeds, with its 95 % interval over problems and seeds. Every verifier reads
the same answers: those of the row.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproduce.matrix import judge_samples
from reproduce.statistics import MeasuredRun, pooled
from selfverify.core.files import write_json
from selfverify.core.problem import Problem
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.metrics import SampleTable, statistics
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
    judged: Sequence[float | None] = [None] * len(found)
    if start is not None:
        judged = judge_samples(PolicyJudge(start), task, [*problems.values()], found)
    return [
        replace(sample, scores={**sample.scores, **_named(sample, score)})
        for sample, score in zip(found, judged, strict=True)
    ]


def _named(sample: StoredSample, judged: float | None) -> dict[str, float]:
    found = {
        "logprob": None if sample.logprob is None else math.exp(sample.logprob),
        "start": judged,
        "passing": sample.scores.get("sampled") if sample.scores.get("text_rule") == 1 else None,
    }
    return {name: score for name, score in found.items() if score is not None}


def measured(samples: Sequence[StoredSample], problems: Sequence[str], reading: str) -> MeasuredRun:
    """Return what is shown of a reading of scores, on all problems and on every draw of them."""
    shown = {metric for _, metric in COLUMNS.values()}
    found = statistics(SampleTable.from_samples(samples, problems, headline=reading))
    return MeasuredRun.of({name: found[name] for name in shown & found.keys()}, len(problems))


def runs_of(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield each finished run's arm, seed and samples."""
    for run in sorted(folder.glob("*/seed-*"), key=lambda path: (path.parent.name, int(path.name[5:]))):
        if (run / "metrics.json").is_file():
            yield run.parent.name, int(run.name[5:]), run / "samples-after.jsonl"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--start", help="a policy whose scores of the same answers are read, too")
    parser.add_argument("--output", type=Path, help="where all values go, as JSON")
    asked = parser.parse_args()
    folder = asked.study / "pick"
    recipe = load_recipe(str(folder / "before" / "recipe.yaml"), [])
    task = make_task(recipe.task.name, **recipe.task.options)
    held_out = HeldOut(task, recipe.evaluation)
    problems = {p.id: p for p in held_out.make(range(held_out.total)).values()}
    start = Policy.load(asked.start, device="cpu") if asked.start else None
    readings = ["sampled", "soft", "passing", *(v for v in VERIFIERS.values() if asked.start or v != "start")]
    arms: dict[str, dict[str, dict[int, MeasuredRun]]] = {}
    for arm, seed, file in [("before", 0, folder / "before" / "samples.jsonl"), *runs_of(folder)]:
        samples = all_scores(file, task, problems, start)
        for reading in readings:
            arms.setdefault(arm, {}).setdefault(reading, {})[seed] = measured(samples, [*problems], reading)
    values = {arm: {r: pooled(by_seed) for r, by_seed in of.items()} for arm, of in arms.items()}
    print(f"{len(problems)} problems x 8\n\n| arm | seeds | {' | '.join(COLUMNS)} |")
    print(f"|---|---|{'---|' * len(COLUMNS)}")
    for arm, found in values.items():
        cells = [cell(found[reading][metric]) for reading, metric in COLUMNS.values()]
        print(f"| {arm} | {len(arms[arm]['sampled'])} | {' | '.join(cells)} |")
    shown = {title: name for title, name in VERIFIERS.items() if name in readings}
    print(f"\n| AUC, best@8 on the arm's answers | {' | '.join(shown)} |\n|---|{'---|' * len(shown)}")
    for arm, found in values.items():
        cells = [
            f"{cell(found[n]['within_problem_auc'])}, {cell(found[n]['best@8'])}" for n in shown.values()
        ]
        print(f"| {arm} | {' | '.join(cells)} |")
    if asked.output:
        write_json(asked.output, {"problems": len(problems), "samples": 8, "arms": values})


def cell(figure: Mapping[str, Any]) -> str:
    """Return a mean with its interval, three digits each, as Markdown."""
    low, high = figure["interval"]
    return f"{figure['mean']:.3f} ({low:.3f}–{high:.3f})".replace("0.", ".")


if __name__ == "__main__":
    main()
