"""The results of a study: every metric of every variant, pooled over seeds, and compared with the baseline.

All runs of a task are measured on the same problems with the same draws of problems. AUC and AP, which are no
means over problems, are computed per seed. `reproduce.statistics` has what is pooled and tested how; how much
training varies is in ``per_seed`` and ``seed_std`` where there are several seeds. `markdown` makes tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.grid_file import BEFORE, Run, Study
from reproduce.statistics import MeasuredRun, difference, measure_run, pooled
from reproduce.tables import TESTED, Column, difference_table, figure_table
from selfverify.core.errors import DataError, __version__
from selfverify.core.files import write_json, write_text
from selfverify.evaluation.evaluate import HeldOut, target_boxes
from selfverify.evaluation.metrics import ERRORS, HEADLINE, MIXED_BOTH, Boxes, SampleTable, statistics
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.evaluation.statistics import Statistic, mean_statistic, row_mean
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.reports.run_data import read_metrics
from selfverify.selection.rules import best_weights

_MAJORITY, _BEST = (Column(name, name) for name in ("majority@{n}", "best@{n}"))
_WITHIN = Column("within_problem_auc", "within-problem AUC", percent=False)
_MIXED = Column(MIXED_BOTH, "AUC, mixed both times", percent=False)
_AUC = Column("auc", "AUC", percent=False)
_SCORES = (
    _WITHIN,
    _AUC,
    Column("ap", "AP", percent=False),
    Column("score_mean", "mean score", percent=False, better=False),
    Column("score_spread", "score spread", percent=False, better=False),
    Column("score_is_1", "score = 1", better=False),
    Column("format_rate", "well-formed", better=False),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "discrete": (
        Column("pass@1", "pass@1"), _MAJORITY, _BEST,
        Column("best_over_majority@{n}", "best − majority", signed=True), Column("oracle@{n}", "oracle@{n}"),
        *_SCORES,
    ),
    "continuous": (
        Column("pass@1", "acc@IoU 0.5"), Column("mean_iou", "mean IoU"), _BEST,
        Column("best_iou@{n}", "IoU of best@{n}"), *_SCORES,
    ),
}  # fmt: skip
"""The columns of a task's table, by kind of task; ``{n}`` stands for the number of samples per problem."""

TWO_TURNS: tuple[Column, ...] = (
    Column("turns.acc@t1", "acc@t1", seeds=True), Column("turns.acc@t2", "acc@t2", seeds=True),
    Column("turns.delta", "Δ", seeds=True, signed=True),
    Column("turns.0->1", "M₀→₁", bold=False, seeds=True),
    Column("turns.1->0", "M₁→₀", bold=False, seeds=True),
    Column("turns.1->1", "1→1", better=False), Column("turns.0->0", "0→0", better=False),
    Column("turns.corrected", "corrected", bold=False), Column("turns.spoiled", "spoiled", bold=False),
    _MAJORITY, _WITHIN, Column("format_rate", "well-formed", better=False),
)  # fmt: skip
"""The columns of a task in two turns. No M is best when it is highest or lowest: a policy that copies its
first answer spoils none."""

NOTE = (
    "Held-out problems; mean over the training seeds [95 % interval, over problems and, where there are "
    "several, seeds]. Best in bold."
)
TURNS_NOTE = (
    "Two turns: all figures but acc@t1 are of second answers. Δ = acc@t2 − acc@t1 = M₀→₁ − M₁→₀. M₀→₁ "
    "(corrected), M₁→₀ (spoiled), 1→1 and 0→0 are shares of all answers; corrected is one of wrong first "
    "ones, spoiled of right ones. ± is the standard deviation over seeds. *before* is the policy that all "
    "runs start from, prompted."
)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the text of ``table.md``."""
    parts = [f"# {results['study']}", NOTE]
    for label, task in results["tasks"].items():
        columns = columns_of(task)
        parts += [
            f"## {label}: {task['task']}",
            f"{task['problems']} problems, {task['samples_per_problem']} samples each.",
            *([TURNS_NOTE] if "turns.acc@t1" in task[BEFORE]["metrics"] else []),
            task_table(task),
        ]
        for key, other in (("difference", results["baseline"]), ("gain", BEFORE)):
            rows = {(name,): row[key] for name, row in task["variants"].items() if row.get(key)}
            mixed = [_MIXED] if any(MIXED_BOTH in row for row in rows.values()) else []
            table, count = difference_table(["variant"], rows, [*columns, *mixed])
            if count:
                parts += [f"Difference from **{other}** {TESTED.format(count=count)}", table]
    if results["missing"]:
        parts.append(f"Not finished: {', '.join(results['missing'])}.")
    return "\n\n".join([*parts, *results["notes"]]) + "\n"


def columns_of(task: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a task's tables."""
    n = task["samples_per_problem"]
    return [
        replace(column, key=str(column.key).format(n=n), title=column.title.format(n=n))
        for column in (TWO_TURNS if "turns.acc@t1" in task[BEFORE]["metrics"] else COLUMNS[task["kind"]])
    ]


def task_table(task: Mapping[str, Any]) -> str:
    """Return a table with a row for the policy before training and one per variant."""
    rows = {(BEFORE, "–"): task[BEFORE]["metrics"]}
    rows |= {(label, str(len(row["seeds"]))): row["metrics"] for label, row in task["variants"].items()}
    return figure_table(["variant", "seeds"], rows, columns_of(task))


def write_results(study: Study, output: Path, runs: Sequence[Run]) -> Path:
    """Aggregate the finished ``runs`` into results.json and table.md; return the path of the first.

    Raises:
        DataError: Runs of one task were measured on different problems, or a file is missing or corrupt.
    """
    done = {run.label: run for run in runs if (output / run.label / "metrics.json").is_file()}
    order = [*study.variants]
    tasks: dict[str, Any] = {}
    versions: dict[str, list[str]] = {}
    for task in study.tasks:
        own = [run for run in done.values() if run.task == task]
        own.sort(key=lambda run: order.index(run.variant))  # whatever the order in which they were finished
        if not own:
            continue
        for label in (*(run.label for run in own), f"{task}/{BEFORE}"):
            # One that notes no version is taken for this one's.
            version = read_metrics(output / label).get("version") or __version__
            versions.setdefault(version, []).append(label)
        samples: dict[str, dict[int, list[StoredSample]]] = {}
        for run in own:
            file = output / run.label / "samples-after.jsonl"
            samples.setdefault(run.variant, {})[run.seed] = _samples(file)
        before = _samples(output / task / BEFORE / "samples.jsonl")
        tasks[task] = task_results(before, samples, {run.variant: run.recipe for run in own}, study.baseline)
    results = {
        "study": study.name,
        "recipe": Path(study.recipe).stem,
        "baseline": study.baseline,
        "interval": "95 %, over problems and seeds; see selfverify.evaluation.statistics",
        "tasks": tasks,
        "missing": [run.label for run in runs if run.label not in done],
        "notes": [
            f"Made with version {version}, while these tables are counted by {__version__}, which may train "
            f"and sample otherwise: {', '.join(labels)}. Delete their folders to run them anew."
            for version, labels in versions.items()
            if version != __version__
        ],
    }
    write_json(output / "results.json", results)
    write_text(output / "table.md", markdown(results))
    return output / "results.json"


def _samples(file: Path) -> list[StoredSample]:
    if not file.is_file():
        raise DataError(f"{file} is missing; delete metrics.json beside it and run the study to make it")
    return read_samples(file)[1]


def task_results(
    before: Sequence[StoredSample],
    samples: Mapping[str, Mapping[int, Sequence[StoredSample]]],
    recipes: Mapping[str, Recipe],
    baseline: str | None,
) -> dict[str, Any]:
    """Return the figures of one task.

    Args:
        before: Samples of the policy that all variants start from.
        samples: Samples after training, by variant and seed.
        recipes: The recipes by variant; the seed does not matter.
        baseline: The variant that the others are compared with.
    """
    recipe = next(iter(recipes.values()))
    task = make_task(recipe.task.name, **recipe.task.options)
    held_out = HeldOut(task, recipe.evaluation)
    # One at a time: the images of all problems may not fit into memory.
    boxes = target_boxes(task, (p for i in range(held_out.total) for p in held_out.make([i]).values()))
    order = list(dict.fromkeys(sample.problem for sample in before))
    reading = recipe.evaluation.score
    first = measure_samples(before, order, boxes, reading, task.errors)
    measured: dict[str, dict[int, MeasuredRun]] = {variant: {} for variant in samples}
    for variant, by_seed in samples.items():
        for seed, found in by_seed.items():
            try:
                measured[variant][seed] = measure_samples(found, order, boxes, reading, task.errors)
            except DataError as error:
                raise DataError(f"{recipe.task.name}, {variant}, seed {seed}: {error}") from None
    reference = measured.get(baseline or "")
    variants = {}
    for variant, own in measured.items():
        variants[variant] = {
            "method": recipes[variant].method.model_dump(mode="json"),
            "seeds": list(own),
            "metrics": pooled(own),
            "gain": difference(own, dict.fromkeys(own, first)),
        }
        if reference is not None and variant != baseline:
            variants[variant]["difference"] = difference(own, reference)
    return {
        "task": recipe.task.name,
        "kind": task.kind,
        "problems": len(order),
        "samples_per_problem": len(before) // len(order),
        BEFORE: {"metrics": pooled({0: first})},
        "variants": variants,
    }


def measure_samples(
    samples: Sequence[StoredSample],
    order: Sequence[str],
    boxes: Boxes | None = None,
    headline: str = HEADLINE,
    errors: Sequence[str] = (),
) -> MeasuredRun:
    """Measure all metrics of a sample set, on the problems in ``order``.

    These are the metrics of `selfverify.evaluation.metrics.statistics` and ``score_is_1``, the share of the
    sampled scores that are 1 (ADPO's Fig. 2). A task whose true answers are ``boxes`` also has ``mean_iou``,
    the mean reward of the answers, and ``best_iou@N``, that of the answers which their own score selects.
    ``errors`` are the classes of error that the task names.
    """
    if differing := sorted({sample.problem for sample in samples} ^ set(order)):
        raise DataError(
            f"runs of one task need the same problems; {len(differing)} differ, such as {differing[0]}"
        )
    table = SampleTable(samples, order, boxes, headline, errors)
    found: dict[str, Statistic] = {
        name: statistic
        for name, statistic in statistics(table).items()
        if "." not in name or name.startswith(("turns.", f"{ERRORS}."))
    }
    sampled = table.scores["sampled"]
    found["score_is_1"] = mean_statistic(row_mean(np.where(np.isnan(sampled), np.nan, sampled >= 1)))
    if boxes is not None:
        quality = table.reward("answer")
        found["mean_iou"] = mean_statistic(quality.mean(-1))
        score = table.scores[headline]
        if not np.isnan(score).all():
            chosen = (best_weights(score) * quality).sum(-1)
            found[f"best_iou@{table.correct.shape[1]}"] = mean_statistic(chosen)
    return measure_run(found)
