"""A study's tables in Markdown: each task's variants in figures, and how they differ from the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reproduce.grid_file import BEFORE
from reproduce.tables import TESTED, Column, difference_table, figure_table

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
    rows = {(BEFORE, "–"): task[BEFORE]["metrics"]}
    rows |= {(label, str(len(row["seeds"]))): row["metrics"] for label, row in task["variants"].items()}
    return figure_table(["variant", "seeds"], rows, columns_of(task))
