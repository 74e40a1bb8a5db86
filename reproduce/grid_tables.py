"""A study's tables in Markdown: each task's variants in figures, and how they differ from the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reproduce.grid_file import BEFORE
from reproduce.tables import TESTED, Column, cell, difference_table, figure_table, grid
from selfverify.evaluation.metrics import ERRORS

_MAJORITY, _BEST = (Column(name, name) for name in ("majority@{n}", "best@{n}"))
_WITHIN = Column("within_problem_auc", "within-problem AUC", percent=False)
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
    "Held-out problems; mean over the training seeds [95 % interval: bootstrap over problems, and over seeds "
    "where there are several]. Best in bold."
)
TURNS_NOTE = (
    "Two turns: all figures but acc@t1 are of second answers. Δ = acc@t2 − acc@t1 = M₀→₁ − M₁→₀. M₀→₁ "
    "(corrected), M₁→₀ (spoiled), 1→1 and 0→0 are shares of all answers; corrected is one of wrong first "
    "ones, spoiled of right ones. ± is the standard deviation over seeds. *before* is the policy that all "
    "runs start from, prompted."
)
ERRORS_NOTE = "By class of error: right answers are compared with those of the class alone; 0.5 is chance."


def markdown(results: Mapping[str, Any]) -> str:
    """Return the text of ``table.md``."""
    parts = [f"# {results['study']}", NOTE]
    for label, task in results["tasks"].items():
        columns = columns_of(task)
        parts += [
            f"## {label}: {task['task']}",
            f"{task['problems']} problems, {task['samples_per_problem']} samples each.",
            *([TURNS_NOTE] if two_turns(task) else []),
            task_table(task),
        ]
        if error_classes_of(task):
            parts += [ERRORS_NOTE, error_table(task)]
        for key, other in (("difference", results["baseline"]), ("gain", BEFORE)):
            rows = {(name,): row[key] for name, row in task["variants"].items() if row.get(key)}
            table, count = difference_table(["variant"], rows, columns)
            if count:
                parts += [f"Difference from **{other}** {TESTED.format(count=count)}", table]
    if results["missing"]:
        parts.append(f"Not finished: {', '.join(results['missing'])}.")
    return "\n\n".join([*parts, *results["notes"]]) + "\n"


def two_turns(task: Mapping[str, Any]) -> bool:
    """Return whether a task's runs were measured in two turns."""
    return "turns.acc@t1" in task[BEFORE]["metrics"]


def columns_of(task: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a task's tables."""
    n = task["samples_per_problem"]
    return [
        replace(column, key=str(column.key).format(n=n), title=column.title.format(n=n))
        for column in (TWO_TURNS if two_turns(task) else COLUMNS[task["kind"]])
    ]


def task_table(task: Mapping[str, Any]) -> str:
    """Return a table with a row for the policy before training and one per variant."""
    rows = {BEFORE: task[BEFORE], **task["variants"]}
    sweep = task["kind"] == "continuous" and not two_turns(task)
    if sweep:  # by margin, whatever the variants are called; without one first
        rows = dict(sorted(rows.items(), key=lambda item: _margin(item[1])))
    found = {}
    for label, row in rows.items():
        margin = "–" if _margin(row) < 0 else f"{_margin(row):g}"
        words = (label, "–" if label == BEFORE else str(len(row["seeds"])), *([margin] if sweep else []))
        found[words] = row["metrics"]
    return figure_table(["variant", "seeds", *(["γ"] if sweep else [])], found, columns_of(task))


def _margin(row: Mapping[str, Any]) -> float:
    return float(row.get("method", {}).get("gamma", -1.0))


def error_classes_of(task: Mapping[str, Any]) -> list[str]:
    """Return the classes of error that a task's figures know, in their order."""
    rows = [task[BEFORE], *task["variants"].values()]
    names = [name.split(".") for row in rows for name in row["metrics"] if name.startswith(f"{ERRORS}.")]
    return list(dict.fromkeys(parts[1] for parts in names))


def error_table(task: Mapping[str, Any]) -> str:
    """Return a table with one row per class of error, for the policy before training and each variant."""
    columns = [
        Column("share", "share of all"),
        _WITHIN,
        _AUC,
        Column("logprob_within_problem_auc", "the log-prob's within-problem AUC", percent=False),
    ]
    body = []
    for error in error_classes_of(task):
        for label, row in {BEFORE: task[BEFORE], **task["variants"]}.items():
            found = [row["metrics"].get(f"{ERRORS}.{error}.{column.key}") for column in columns]
            empty = {0: "no such answer", None: "not stored"}.get((found[0] or {}).get("mean"), "–")
            cells = [cell(figure, "mean", column) for figure, column in zip(found, columns, strict=True)]
            body.append([error, label, *(empty if text == "–" else text for text in cells)])
    return grid(["class of error", "variant", *(column.heading for column in columns)], body, 2)
