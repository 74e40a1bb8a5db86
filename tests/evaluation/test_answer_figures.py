"""What figures say of two-turn answers, of rules as verifiers and of classes of error, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import sample
from selfverify.core.problem import Problem
from selfverify.evaluation.metrics import MALFORMED, NOT_STORED, paired_difference, summarise, tabulate_errors
from selfverify.evaluation.samples import CORRECT_1, StoredSample, with_rule_scores
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task
from tables import read_tables

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
    # Half of p0's and none of p1's: two problems say next to nothing.
    low, high = found["intervals"]["errors.not shown.share"]
    assert 0 < low < 0.01 and high > 0.9


def test_a_class_without_samples_is_empty_and_says_why() -> None:
    kept = [one for one in BLIND if one.error != "not shown"]
    equal = [one for one in kept if one.sample < 2]
    found = summarise(equal, errors=("wrong sum", "not shown"))["errors"]
    assert found["not shown"] == {
        "answers": 0, "share": 0, "within_problem_auc": None, "auc": None, "logprob_within_problem_auc": None,
        "missing": "no answer is of this class",
    }  # fmt: skip
    plain = summarise([sample("p0", 0, True, 0.9), sample("p0", 1, False, 0.1, answer=None)])
    assert "errors" not in plain and tabulate_errors(plain) == []
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


# --- two turns ----------------------------------------------------------------------------------------------


def turned(problem: int, number: int, first: int | None, second: int) -> StoredSample:
    rewards = {"answer": float(second), "format": 1.0} | ({} if first is None else {CORRECT_1: float(first)})
    return sample(f"p{problem}", number, bool(second), None, key=str(second), rewards=rewards)


KINDS = [[(0, 0), (0, 1), (0, 1), (1, 1)], [(1, 0), (1, 1), (1, 1), (0, 0)]]


def samples(kinds: list[list[tuple[int, int]]]) -> list[StoredSample]:
    return [turned(p, n, i, j) for p, row in enumerate(kinds) for n, (i, j) in enumerate(row)]


def test_turns_by_hand() -> None:
    summary = summarise(samples(KINDS))
    assert summary["turns"] == pytest.approx(
        {"acc@t1": 4 / 8, "acc@t2": 5 / 8, "delta": 1 / 8, "0->0": 2 / 8, "0->1": 2 / 8, "1->0": 1 / 8,
         "1->1": 3 / 8, "corrected": 2 / 4, "spoiled": 1 / 4}
    )  # fmt: skip
    assert summary["pass@1"] == summary["turns"]["acc@t2"]
    low, high = summary["intervals"]["turns.delta"]
    assert (
        high - 1 / 8 == pytest.approx(1 / 8 - low) == pytest.approx(12.706 * 0.375, rel=1e-4)
    )  # -1/4 and 1/2
    copied = [[(i, i) for i, _ in row] for row in KINDS]
    found = paired_difference(samples(copied), samples(KINDS))
    assert found["turns.delta"]["difference"] == pytest.approx(1 / 8)
    assert summarise(samples([[(1, 1), (1, 0)]]))["turns"]["corrected"] is None
    assert "turns" not in summarise([turned(0, n, None, n) for n in range(2)])


# --- rules on texts -----------------------------------------------------------------------------------------


PROBLEM = Problem("p/0", [], target=11, meta={"digits": [2, 4, 5, 2, 9, 1]})
TEXTS = read_tables(Path(__file__).with_suffix(".yaml"))["texts"]


def marked(**more: object) -> Task:
    return make_task("digits-pick", reasoning="marked", **more)


def written(work: str) -> str:
    return f"<think>{work}</think><answer>2 4 5</answer><score>0.3</score><|im_end|>"


@pytest.mark.parametrize("work", TEXTS)
def test_the_rule_passes_a_written_sum_that_is_the_target_without_a_mark(work: str) -> None:
    asked = [sample("p/0", 0, True, 0.5, text=written(work))]
    (told,) = with_rule_scores(asked, marked(), {"p/0": PROBLEM})
    assert [told.scores["text_rule"], told.scores["text_rule_read"]] == TEXTS[work]
    assert told.scores["soft"] == 0.5 and "text_rule" not in asked[0].scores
    (told,) = with_rule_scores(asked, make_task("digits-pick"), {"p/0": PROBLEM})
    assert told.scores["text_rule"] == TEXTS[work][0]
    assert "text_rule_read" not in told.scores, "nothing is transcribed without marks"


def test_answers_without_a_score_to_compare_with_have_none() -> None:
    text = written("245291:2+4+5=11")
    asked = [sample("p/0", 0, True, 0.5, text=text.removeprefix("<think>"))]
    assert with_rule_scores(asked, marked(), {"p/0": PROBLEM}) == asked
    asked = [sample("p/0", 0, True, None, text=text)]
    assert with_rule_scores(asked, marked(score=False), {"p/0": PROBLEM}) == asked
    asked = [sample("p/0", 0, True, 0.5, text=text)]
    assert with_rule_scores(asked, make_task("digits-sum"), {"p/0": PROBLEM}) == asked


def test_its_figures_stand_beside_those_of_the_score() -> None:
    """The score is blind, the rule is right about two of three: AUCs .5 and 1 where both kinds are."""
    works = ["245291:2+4+5=11", "245291:2+4+5=12"]
    asked = [sample("p/0", k, k == 0, 0.5, text=written(work)) for k, work in enumerate(works)]
    found = summarise(with_rule_scores(asked, marked(), {"p/0": PROBLEM}))
    assert found["within_problem_auc"] == 0.5 and found["text_rule"]["within_problem_auc"] == 1.0
    assert found["best@2"] == 0.5 and found["text_rule"]["best@2"] == found["text_rule"]["weighted@2"] == 1.0
    assert found["intervals"]["text_rule.within_problem_auc"] is None
    assert "text_rule" not in summarise(asked)
