"""The table that `selfverify eval` prints of a task's figures."""

from __future__ import annotations

from typing import Any

from selfverify.cli.eval_commands import by_category, by_error, why_empty
from selfverify.evaluation.breakdown import MOST_VALUES


def found(value: float) -> dict[str, Any]:
    """One figure of some problems, as `evaluation.metrics.summarise` has it; nothing was scored."""
    return {"problems": 4, "SR": {"curves": {"pass@1": [value]}}}


def test_long_categories_and_empty_columns_are_left_out() -> None:
    kinds = {f"kind-{number}": found(0.5) for number in range(MOST_VALUES + 1)}
    metrics = {
        "problems": 4,
        "samples_per_problem": 1,
        "metrics": {"SR": found(0.25)["SR"]},
        "categories": {"template": kinds, "app": {"clock": found(0.75)}},
    }
    columns, rows, title = by_category(metrics)
    assert columns == ["part", "problems", "figure", "pass@1"]
    assert rows == [["all", 4, "SR", 0.25], ["app: clock", 4, "SR", 0.75]]
    assert title.endswith("--json has every N, and every template")
    assert by_category({"problems": 4, "categories": {"template": kinds}})[:2] == ([], [])
    assert by_category({"problems": 4})[:2] == ([], [])


def test_classes_of_error_are_printed_with_the_reason_of_empty_cells() -> None:
    metrics = {
        "errors": {
            "wrong sum": {"answers": 2, "share": 0.25, "auc": 0.9},
            "not shown": {"answers": 0, "share": 0.0, "auc": None, "missing": "no answer is of this class"},
        }
    }
    columns, rows, _ = by_error(metrics)
    assert columns == ["error", "answers", "share", "auc"]
    assert rows[1] == ["not shown", 0, 0.0, None]
    assert why_empty(metrics) == ["not shown: no answer is of this class"]
    assert by_error({})[:2] == ([], []) and why_empty({}) == []
