"""Figures by class of error, from known answers, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samples import sample
from selfverify.evaluation.metrics import MALFORMED, NOT_STORED, summarise, tabulate_errors
from selfverify.evaluation.samples import StoredSample

BLIND = [
    sample("p0", 0, True, 0.9, logprob=-1.0),
    sample("p0", 1, False, 0.1, logprob=-0.5, error="wrong sum"),
    sample("p0", 2, False, 0.9, logprob=-3.0, error="not shown"),
    sample("p0", 3, False, 0.95, logprob=-3.0, error="not shown"),
    sample("p1", 0, True, 0.2, logprob=-1.0),
    sample("p1", 1, False, 0.1, logprob=-2.0, error="wrong sum"),
    sample("p1", 2, False, None, logprob=-2.0, answer=None, key=None),
    sample("p1", 3, False, None, finish="error", answer=None, key=None),
]
"""A verifier that sees wrong sums, and not what is shown."""


def test_figures_by_hand() -> None:
    found = summarise(BLIND, errors=("wrong sum", "not shown"))
    assert list(found["errors"]) == ["wrong sum", "not shown", MALFORMED]
    sums, shown, malformed = found["errors"].values()
    assert (sums["answers"], sums["share"]) == (2, 0.25)
    assert sums["within_problem_auc"] == sums["auc"] == 1
    assert sums["logprob_within_problem_auc"] == (0 + 1) / 2
    # Of p0's two pairs one is a tie and one lost. Over all, .9 is level with one and .2 below both.
    assert shown["within_problem_auc"] == 0.5 / 2 and shown["auc"] == pytest.approx(0.5 / 4)
    assert shown["logprob_within_problem_auc"] == 1
    # The outage is no class: its answer was not malformed.
    assert (malformed["answers"], malformed["share"]) == (1, 1 / 8)
    assert malformed["auc"] is None and malformed["logprob_within_problem_auc"] == 1
    assert (
        malformed["missing"] == "no problem has a right answer and one of this class that both have a score"
    )
    assert "missing" not in shown
    # Both of p0's problems or none: the draws are of whole problems.
    assert found["intervals"]["errors.not shown.share"] == [0, 0.5]


def test_a_class_without_samples_is_empty_and_says_why() -> None:
    kept = [one for one in BLIND if one.error != "not shown"]
    equal = [one for one in kept if one.sample < 2]
    found = summarise(equal, errors=("wrong sum", "not shown"))["errors"]
    assert found["not shown"] == {
        "answers": 0, "share": 0, "within_problem_auc": None, "auc": None, "logprob_within_problem_auc": None,
        "missing": "no answer is of this class",
    }  # fmt: skip
    none = [one for one in BLIND if not one.correct and one.sample == 1]
    assert summarise(none)["errors"]["wrong sum"]["missing"] == "no answer is right"


def test_samples_that_were_stored_without_classes_are_told_from_answers_without_errors() -> None:
    """How many there are of a class is then not known; malformed ones are seen all the same."""
    lost = sample("p0", 2, False, None, finish="error", answer=None, key=None)
    old = [sample("p0", 0, True, 0.9), sample("p0", 1, False, 0.1), lost]
    found = summarise(old, errors=("wrong sum",))
    assert found["errors"]["wrong sum"] == {
        "answers": None, "share": None, "within_problem_auc": None, "auc": None,
        "logprob_within_problem_auc": None, "missing": NOT_STORED.format(count=1),
    }  # fmt: skip
    assert found["errors"][MALFORMED]["share"] == 0
    assert found["intervals"]["errors.wrong sum.share"] is None
    outage = summarise([old[0], lost], errors=("wrong sum",))["errors"]
    assert outage["wrong sum"]["share"] == 0


def test_tasks_without_classes_have_no_such_table() -> None:
    plain: list[StoredSample] = [sample("p0", 0, True, 0.9), sample("p0", 1, False, 0.1, answer=None)]
    assert "errors" not in summarise(plain)
    assert tabulate_errors(summarise(plain)) == []


def test_no_row_says_why_it_lacks_what_the_table_does_not_show() -> None:
    """A task without scores has no columns of their AUCs; an empty class says why it lacks the rest."""
    rows = tabulate_errors(
        summarise([replace(one, scores={}) for one in BLIND], errors=("wrong sum", "torn"))
    )
    assert "auc" not in rows[0] and rows[0]["logprob_within_problem_auc"] is not None
    assert [row["missing"] for row in rows if row["error"] in ("wrong sum", "torn")] == [
        None,
        "no answer is of this class",
    ]
