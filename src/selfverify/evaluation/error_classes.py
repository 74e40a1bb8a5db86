"""Figures by class of error: how often answers err in a way that a task names, and whether scores see it.

A task names the classes of its wrong answers (`Task.errors`) and puts each into one (`Verdict.error`). A
verifier that tells right answers from wrong ones well may still be blind to one class: that shows only when
right answers are compared with that class alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class ErrorClasses:
    """Which of the samples ``[P, G]`` err in which way.

    Args:
        masks: The samples of each class; empty where there are no classes.
        without: How many answers are wrong and readable and have no class.
    """

    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    without: int = 0

    @property
    def lost(self) -> bool:
        """Whether answers were stored without their classes: some are wrong, and not one has a class."""
        return self.without > 0 and not any(mask.any() for n, mask in self.masks.items() if n != MALFORMED)


def error_classes(rows: Sequence[Sequence[StoredSample]], named: Sequence[str] = ()) -> ErrorClasses:
    """Return the samples of each class: those that the task has named, in its order, and `MALFORMED`.

    Classes that samples have and the task has not named follow. There are none where neither the task nor a
    sample names a class. An answer that could not be judged has none.
    """
    found = {s.error for row in rows for s in row if s.error}
    if not named and not found:
        return ErrorClasses()

    def of(sample: StoredSample) -> str | None:
        unread = sample.answer is None and not sample.correct and sample.finish != Finish.ERROR
        return sample.error or (MALFORMED if unread else None)

    own = np.array([[of(sample) or "" for sample in row] for row in rows])
    wrong = np.array([[not s.correct and s.finish != Finish.ERROR for s in row] for row in rows])
    masks = {name: own == name for name in dict.fromkeys([*named, *sorted(found), MALFORMED])}
    return ErrorClasses(masks, int((wrong & (own == "")).sum()))


def error_statistics(
    classes: ErrorClasses, correct: Floats, score: Floats, logprob: Floats
) -> dict[str, Statistic]:
    """Return the figures of each class, named ``errors.CLASS.FIGURE``, as functions of problem weights.

    ``share`` is the share of all answers. ``within_problem_auc`` and ``auc`` compare right answers with the
    class alone, in the same problem and over all. ``logprob_within_problem_auc`` is what the answer's mean
    log-probability reaches without having been taught. Where the classes were not stored, shares are unknown.

    Args:
        classes: The classes.
        correct: ``[P, G]`` in {0, 1}.
        score: ``[P, G]``; NaN where a sample has no score.
        logprob: ``[P, G]``, likewise.
    """
    found: dict[str, Statistic] = {}
    for name, mask in classes.masks.items():
        share = np.where(classes.lost and name != MALFORMED, np.nan, row_mean(mask))
        compared = mask | (correct > 0.5)
        own, free = (np.where(compared, values, np.nan) for values in (score, logprob))
        found |= {
            f"{ERRORS}.{name}.share": mean_statistic(share),
            f"{ERRORS}.{name}.within_problem_auc": mean_statistic(within_problem_auc(own, correct)),
            f"{ERRORS}.{name}.auc": auc_statistic(own, correct),
            f"{ERRORS}.{name}.logprob_within_problem_auc": mean_statistic(within_problem_auc(free, correct)),
        }
    return found


def error_table(
    classes: ErrorClasses, correct: Floats, values: Mapping[str, float | None]
) -> dict[str, dict[str, Any]]:
    """Return each class's figures, how many ``answers`` it has, and why figures are ``missing``.

    Args:
        classes: The classes.
        correct: ``[P, G]`` in {0, 1}.
        values: The figures by the names of `error_statistics`; None where undefined.
    """
    table = {}
    for name, mask in classes.masks.items():
        start, lost = f"{ERRORS}.{name}.", classes.lost and name != MALFORMED
        own = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        lacking = [figure for figure, value in own.items() if value is None]
        why = NOT_STORED.format(count=classes.without) if lost else _why(mask, correct)
        table[name] = {
            "answers": None if lost else int(mask.sum()),
            **own,
            **({MISSING: why} if lacking else {}),
        }
    return table


NOT_STORED = (
    "{count} wrong answers were stored without their class, by another version: delete them, evaluate again"
)
"""Why nothing is known of a class that samples of another version do not have."""


def _why(mask: NDArray[np.bool_], correct: Floats) -> str:
    """Why right answers and those of a class cannot be compared."""
    if not mask.any():
        return "no answer is of this class"
    if not (correct > 0.5).any():
        return "no answer is right"
    return "no problem has a right answer and one of this class that both have a score"


MISSING = "missing"
"""The reason why a class lacks figures."""

COLUMNS = {
    "answers": "Answers",
    "share": "Share of all",
    "within_problem_auc": "AUC within a problem",
    "auc": "AUC",
    "logprob_within_problem_auc": "The log-prob's within a problem",
    MISSING: "Why figures are missing",
}
"""The columns of a table for people, and their titles."""


def tabulate_errors(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for people for each class: its name as ``error``, and `COLUMNS` where any row has one.

    A column that no class has a figure in, as those of scores where a task has none, is left out, and no row
    says why it lacks it.
    """
    table: Mapping[str, Mapping[str, Any]] = summary.get(ERRORS) or {}
    figures = [name for name in COLUMNS if name != MISSING]
    kept = [name for name in figures if any(row.get(name) is not None for row in table.values())]
    rows = {name: {"error": name, **{key: row.get(key) for key in kept}} for name, row in table.items()}
    why = {name: table[name].get(MISSING) for name, row in rows.items() if None in row.values()}
    return [row | ({MISSING: why.get(name)} if any(why.values()) else {}) for name, row in rows.items()]
