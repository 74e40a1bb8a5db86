"""A study's tables in Markdown: each task's variants in figures, and how they differ from the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reproduce.grid_file import BEFORE
from reproduce.statistics import holm
from selfverify.evaluation.metrics import ERRORS


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        name: The metric; ``{n}`` stands for the number of samples per problem.
        title: The column's heading.
        percent: Whether it is shown as a percentage.
        better: Whether more is better or worse. If neither, intervals and differences are not shown.
        bold: Whether the highest value is printed bold.
        signed: Whether the value is a difference and shown with its sign.
        seeds: Whether the standard deviation over seeds is shown.
    """

    name: str
    title: str
    percent: bool = True
    better: bool = True
    bold: bool = True
    signed: bool = False
    seeds: bool = False

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} (%)" if self.percent else self.title


_PASS = Column("pass@1", "pass@1")
_MAJORITY = Column("majority@{n}", "majority@{n}")
_BEST = Column("best@{n}", "best@{n}")
_GAIN = Column("best_over_majority@{n}", "best − majority", signed=True)
_WITHIN = Column("within_problem_auc", "within-problem AUC", percent=False)
_AUC = Column("auc", "AUC", percent=False)
_AP = Column("ap", "AP", percent=False)
_SCORES = (
    Column("score_mean", "mean score", percent=False, better=False),
    Column("score_spread", "score spread", percent=False, better=False),
    Column("score_is_1", "score = 1", better=False),
    Column("format_rate", "well-formed", better=False),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "discrete": (
        _PASS, _MAJORITY, _BEST, _GAIN, Column("oracle@{n}", "oracle@{n}"), _WITHIN, _AUC, _AP, *_SCORES,
    ),
    "continuous": (
        Column("pass@1", "acc@IoU 0.5"), Column("mean_iou", "mean IoU"), _BEST,
        Column("best_iou@{n}", "IoU of best@{n}"), _WITHIN, _AUC, _AP, *_SCORES,
    ),
}  # fmt: skip
"""The columns of a task's table, by kind of task."""

TWO_TURNS: tuple[Column, ...] = (
    Column("turns.acc@t1", "acc@t1", seeds=True), Column("turns.acc@t2", "acc@t2", seeds=True),
    Column("turns.delta", "Δ", seeds=True, signed=True),
    Column("turns.0->1", "M₀→₁", bold=False, seeds=True),
    Column("turns.1->0", "M₁→₀", bold=False, seeds=True),
    Column("turns.1->1", "1→1", better=False), Column("turns.0->0", "0→0", better=False),
    Column("turns.corrected", "corrected", bold=False), Column("turns.spoiled", "spoiled", bold=False),
    Column("majority@{n}", "majority@{n}"), _WITHIN, Column("format_rate", "well-formed", better=False),
)  # fmt: skip
"""The columns of a task in two turns. No M is best when it is highest or lowest: a policy that copies its
first answer spoils none."""

NOTE = (
    "Held-out problems; mean over the training seeds [95 % interval: bootstrap over problems, and over seeds "
    "where there are several]. Best in bold."
)
TESTED = (
    "on the same problems and seeds [95 % interval], by Student's t (Welch): the variance over draws of the "
    "problems, which are paired, and over each side's seeds. Bold where p < .05 after Holm's correction for "
    "the {count} comparisons of the table; with one seed a test is about that trained model."
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
        parts += [
            f"## {label}: {task['task']}",
            f"{task['problems']} problems, {task['samples_per_problem']} samples each.",
            *([TURNS_NOTE] if two_turns(task) else []),
            task_table(task),
        ]
        if error_classes_of(task):
            parts += [ERRORS_NOTE, error_table(task)]
        for key, other in (("difference", results["baseline"]), ("gain", BEFORE)):
            table, count = difference_table(task, key)
            if count:
                parts += [f"Difference from **{other}** {TESTED.format(count=count)}", table]
    if results["missing"]:
        parts.append(f"Not finished: {', '.join(results['missing'])}.")
    parts += results["notes"]
    return "\n\n".join(parts) + "\n"


def two_turns(task: Mapping[str, Any]) -> bool:
    """Return whether a task's runs were measured in two turns."""
    return "turns.acc@t1" in task[BEFORE]["metrics"]


def _columns(task: Mapping[str, Any]) -> tuple[Column, ...]:
    return TWO_TURNS if two_turns(task) else COLUMNS[task["kind"]]


def task_table(task: Mapping[str, Any]) -> str:
    """Return a table with a row for the policy before training and one per variant."""
    columns, n = _columns(task), task["samples_per_problem"]
    sweep = task["kind"] == "continuous" and not two_turns(task)
    rows = {BEFORE: task[BEFORE], **task["variants"]}
    if sweep:  # by margin, whatever the variants are called; without one first
        rows = dict(sorted(rows.items(), key=lambda item: item[1].get("method", {}).get("gamma", -1.0)))
    body = []
    for label, row in rows.items():
        cells = [label, "–" if label == BEFORE else str(len(row["seeds"]))]
        if sweep:
            cells.append(_margin(row))
        for column in columns:
            name = column.name.format(n=n)
            text = _cell(row["metrics"].get(name), "mean", column)
            cells.append(f"**{text}**" if label in _best(rows, name, column) else text)
        body.append(cells)
    head = ["variant", "seeds", *(["γ"] if sweep else []), *(c.heading.format(n=n) for c in columns)]
    return _grid(head, body)


def error_classes_of(task: Mapping[str, Any]) -> list[str]:
    """Return the classes of error that a task's figures know, in their order."""
    rows = [task[BEFORE], *task["variants"].values()]
    names = [name.split(".") for row in rows for name in row["metrics"] if name.startswith(f"{ERRORS}.")]
    return list(dict.fromkeys(parts[1] for parts in names))


def error_table(task: Mapping[str, Any]) -> str:
    """Return a table with one row per class of error, for the policy before training and each variant."""
    rows = {BEFORE: task[BEFORE], **task["variants"]}
    columns = [
        Column("share", "share of all", bold=False),
        replace(_WITHIN, bold=False),
        replace(_AUC, bold=False),
        Column("logprob_within_problem_auc", "the log-prob's within-problem AUC", percent=False, bold=False),
    ]
    body = []
    for error in error_classes_of(task):
        for label, row in rows.items():
            found = {column.name: row["metrics"].get(f"{ERRORS}.{error}.{column.name}") for column in columns}
            share = (found["share"] or {}).get("mean")
            empty = {0: "no such answer", None: "not stored"}.get(share, "–")
            cells = [_cell(found[column.name], "mean", column) for column in columns]
            body.append([error, label, *(empty if cell == "–" else cell for cell in cells)])
    return _grid(["class of error", "variant", *(column.heading for column in columns)], body)


def difference_table(task: Mapping[str, Any], key: str = "difference") -> tuple[str, int]:
    """Return a table with a row for each variant that has differences, and how many of them were tested.

    Args:
        task: What `reproduce.grid_results.task_results` has found.
        key: ``difference`` from the baseline, or ``gain`` over the policy before training.
    """
    columns = [column for column in _columns(task) if column.better]
    n = task["samples_per_problem"]
    rows = {label: row[key] for label, row in task["variants"].items() if row.get(key)}
    found = [rows[label].get(column.name.format(n=n)) for label in rows for column in columns]
    adjusted = holm([None if figure is None else figure["p"] for figure in found])
    body = []
    for place, label in enumerate(rows):
        cells = [label]
        for number, column in enumerate(columns, start=place * len(columns)):
            text, p = _cell(found[number], "difference", column, sign="+"), adjusted[number]
            cells.append(text if p is None or p >= 0.05 else f"**{text}**")
        body.append(cells)
    head = ["variant", *(column.heading.format(n=n) for column in columns)]
    return _grid(head, body), sum(p is not None for p in adjusted)


def _best(rows: Mapping[str, Any], name: str, column: Column) -> list[str]:
    """Return the rows with the highest figure as it is printed; figures that look equal are bold together."""
    if not column.better or not column.bold:
        return []
    shown = {
        label: round(figure["mean"], 3)
        for label, row in rows.items()
        if (figure := row["metrics"].get(name)) and figure["mean"] is not None
    }
    return [label for label, value in shown.items() if value == max(shown.values())]


def _cell(figure: Mapping[str, Any] | None, name: str, column: Column, sign: str = "") -> str:
    if figure is None or figure[name] is None:
        return "–"
    # A difference of rates is itself one that has a sign.
    sign = "+" if column.signed else sign

    def write(value: float) -> str:
        text = f"{value * 100:{sign}.1f}" if column.percent else f"{value:{sign}.3f}"
        return text.replace("-", "−")

    interval = figure["interval"] if column.better else None
    spread = f" [{write(interval[0])}, {write(interval[1])}]" if interval else ""
    if column.seeds and figure.get("seed_std") is not None:
        spread += f" ± {figure['seed_std'] * 100:.1f}"
    return write(figure[name]) + spread


def _margin(row: Mapping[str, Any]) -> str:
    gamma = row.get("method", {}).get("gamma")
    return "–" if gamma is None else f"{gamma:g}"


def _grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
