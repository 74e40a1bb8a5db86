"""A study's tables in Markdown: each task's variants in figures, and how they differ from the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfverify.experiments.study.study_file import BEFORE


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
    "Held-out problems; mean over the training seeds [95 % interval: bootstrap over problems]. The intervals "
    "do not cover how training varies between seeds: `results.json` has every seed's figure. Best in bold."
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
        parts += [
            f"## {label}: {task['task']}",
            f"{task['problems']} problems, {task['samples_per_problem']} samples each.",
            *([TURNS_NOTE] if two_turns(task) else []),
            task_table(task),
        ]
        if any(variant.get("difference") for variant in task["variants"].values()):
            parts += [
                f"Difference from **{results['baseline']}** on the same problems and seeds; bold where the "
                "interval excludes 0.",
                difference_table(task),
            ]
    if results["missing"]:
        parts.append(f"Not finished: {', '.join(results['missing'])}.")
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


def difference_table(task: Mapping[str, Any]) -> str:
    """Return a table with one row per variant except the baseline."""
    columns = [column for column in _columns(task) if column.better]
    n = task["samples_per_problem"]
    body = []
    for label, row in task["variants"].items():
        if "difference" not in row:
            continue
        cells = [label]
        for column in columns:
            figure = row["difference"].get(column.name.format(n=n))
            text = _cell(figure, "difference", column, sign="+")
            low, high = (figure or {}).get("interval") or (0, 0)
            cells.append(f"**{text}**" if low > 0 or high < 0 else text)
        body.append(cells)
    return _grid(["variant", *(column.heading.format(n=n) for column in columns)], body)


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
