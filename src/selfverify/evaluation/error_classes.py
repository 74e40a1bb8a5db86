"""Figures by class of error: how often answers err in a way that a task names, and whether scores see it.

A task names the classes of its wrong answers (`Task.errors`) and puts each into one (`Judged.error`). A
verifier that tells right answers from wrong ones well may still be blind to one class: that shows only when
right answers are compared with that class alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfverify.core.trajectory import Finish
from selfverify.evaluation.statistics import (
    Statistic,
    auc_statistic,
    mean_statistic,
    row_mean,
    within_problem_auc,
)
from selfverify.evaluation.store import StoredSample
from selfverify.selection.rules import Floats

MALFORMED = "malformed"
"""The class of answers that cannot be read, in every task that names classes."""
ERRORS = "errors"
"""The table of a summary that has these figures, and the beginning of their names."""

Classes = Mapping[str, NDArray[np.bool_]]
"""Which of the samples ``[P, G]`` belong to each class."""


def error_classes(rows: Sequence[Sequence[StoredSample]], named: Sequence[str] = ()) -> Classes:
    """Return the samples of each class: those that the task has named, in its order, and `MALFORMED`.

    Classes that samples have and the task has not named follow. Nothing is returned where neither the task
    nor a sample names a class. An answer that could not be judged has none.
    """
    found = {s.error for row in rows for s in row if s.error}
    if not named and not found:
        return {}

    def of(sample: StoredSample) -> str | None:
        unread = sample.answer is None and not sample.correct and sample.finish != Finish.ERROR
        return sample.error or (MALFORMED if unread else None)

    own = np.array([[of(sample) or "" for sample in row] for row in rows])
    return {name: own == name for name in dict.fromkeys([*named, *sorted(found), MALFORMED])}


def error_statistics(
    classes: Classes, correct: Floats, score: Floats, logprob: Floats
) -> dict[str, Statistic]:
    """Return the figures of each class, named ``errors.CLASS.FIGURE``, as functions of problem weights.

    ``share`` is the share of all answers. ``within_problem_auc`` and ``auc`` compare right answers with the
    class alone, in the same problem and over all. ``logprob_within_problem_auc`` is what the answer's mean
    log-probability reaches without having been taught.

    Args:
        classes: The classes.
        correct: ``[P, G]`` in {0, 1}.
        score: ``[P, G]``; NaN where a sample has no score.
        logprob: ``[P, G]``, likewise.
    """
    found: dict[str, Statistic] = {}
    for name, mask in classes.items():
        compared = mask | (correct > 0.5)
        own, free = (np.where(compared, values, np.nan) for values in (score, logprob))
        found |= {
            f"{ERRORS}.{name}.share": mean_statistic(row_mean(mask)),
            f"{ERRORS}.{name}.within_problem_auc": mean_statistic(within_problem_auc(own, correct)),
            f"{ERRORS}.{name}.auc": auc_statistic(own, correct),
            f"{ERRORS}.{name}.logprob_within_problem_auc": mean_statistic(within_problem_auc(free, correct)),
        }
    return found


def error_table(
    classes: Classes, correct: Floats, values: Mapping[str, float | None]
) -> dict[str, dict[str, Any]]:
    """Return each class's figures, how many ``answers`` it has, and why figures are ``missing``.

    Args:
        classes: The classes.
        correct: ``[P, G]`` in {0, 1}.
        values: The figures by the names of `error_statistics`; None where undefined.
    """
    classed = np.any([*classes.values()], axis=0) if classes else np.zeros(correct.shape, dtype=bool)
    unknown = int(((correct < 0.5) & ~classed).sum())
    table = {}
    for name, mask in classes.items():
        start = f"{ERRORS}.{name}."
        own = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        lacking = [figure for figure, value in own.items() if value is None]
        table[name] = {
            "answers": int(mask.sum()),
            **own,
            **({"missing": _why(mask, correct, unknown)} if lacking else {}),
        }
    return table


def _why(mask: NDArray[np.bool_], correct: Floats, unknown: int) -> str:
    """Why right answers and those of a class cannot be compared."""
    if not mask.any():
        rest = f" ({unknown} wrong answers have no class: they were stored without)" if unknown else ""
        return f"no answer is of this class{rest}"
    if not (correct > 0.5).any():
        return "no answer is right"
    return "no problem has a right answer and one of this class that both have a score"


COLUMNS = {
    "answers": "Answers",
    "share": "Share of all",
    "within_problem_auc": "AUC within a problem",
    "auc": "AUC",
    "logprob_within_problem_auc": "The log-prob's within a problem",
    "missing": "Why figures are missing",
}
"""The columns of a table for people, and their titles."""


def tabulate_errors(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for people for each class: its name as ``error``, and `COLUMNS` where any row has one."""
    table: Mapping[str, Mapping[str, Any]] = summary.get(ERRORS) or {}
    kept = [column for column in COLUMNS if any(row.get(column) is not None for row in table.values())]
    return [{"error": name, **{column: row.get(column) for column in kept}} for name, row in table.items()]
