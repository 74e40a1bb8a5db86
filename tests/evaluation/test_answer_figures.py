"""Figures of two-turn answers, of rules as verifiers and of classes of error, and those that come first."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.evaluation.test_looked import four

from samples import sample
from selfverify.core.problem import Problem
from selfverify.evaluation.headline import MOST, WIDEST, Headline, Stored, headline
from selfverify.evaluation.metrics import MALFORMED, NOT_STORED, paired_difference, summarise, tabulate_errors
from selfverify.evaluation.samples import CORRECT_1, StoredSample, StoredStep, with_rule_scores
from selfverify.evaluation.visual_metrics import compared
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task

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
    assert low == -0.25 and high == 0.5  # one problem's delta or the other's
    copied = [[(i, i) for i, _ in row] for row in KINDS]
    found = paired_difference(samples(copied), samples(KINDS))
    assert found["turns.delta"]["difference"] == pytest.approx(1 / 8)
    assert summarise(samples([[(1, 1), (1, 0)]]))["turns"]["corrected"] is None
    assert "turns" not in summarise([turned(0, n, None, n) for n in range(2)])


# --- rules on texts -----------------------------------------------------------------------------------------


PROBLEM = Problem("p/0", [], target=11, meta={"digits": [2, 4, 5, 2, 9, 1]})
TEXTS = {
    "245291:2+4+5=11": (1.0, 1.0),
    "245291:2+4+5=12": (0.0, 0.0),
    "245291:2+8?+1=11": (0.0, 0.0),
    "245291:2+8+1=11": (1.0, 0.0),  # not marked, and not among what it says that it read
    "245291:9+9+9=11": (1.0, 0.0),  # a 9 more often than it read
    "no sum": (0.0, 0.0),
}


def marked(**more: object) -> Task:
    return make_task("digits-pick", reasoning="marked", **more)


def written(work: str) -> str:
    return f"<think>{work}</think><answer>2 4 5</answer><score>0.3</score><|im_end|>"


@pytest.mark.parametrize("work", TEXTS)
def test_the_rule_passes_a_written_sum_that_is_the_target_without_a_mark(work: str) -> None:
    asked = [sample("p/0", 0, True, 0.5, text=written(work))]
    (told,) = with_rule_scores(asked, marked(), {"p/0": PROBLEM})
    assert (told.scores["text_rule"], told.scores["text_rule_read"]) == TEXTS[work]
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
    assert found["intervals"]["text_rule.within_problem_auc"] == [1.0, 1.0]
    assert "text_rule" not in summarise(asked)


# --- the figures that come first ----------------------------------------------------------------------------


Summary = dict[str, Any]


def forty(count: int = 8, scores: bool = True, **changes: Any) -> list[StoredSample]:
    """Forty problems with ``count`` answers each, the first half right and with a higher score, if any."""
    return [
        sample(f"p/{p}", k, right, (0.9 if right else 0.1) if scores else None, key=str(right), **changes)
        for p in range(40)
        for k in range(count)
        for right in [2 * k < count]
    ]


def scored(**more: float) -> list[StoredSample]:
    found = forty()
    for one in found:
        one.scores |= more
    return found


def talks(**rewards: float) -> list[StoredSample]:
    step = StoredStep("policy", 0, "action", "tap", [], "stop", {"tool_errors": 0.0}, None)
    counted = {"answer": 1.0, "format": 1.0, "tool_calls": 123.0} | rewards
    return forty(4, scores=False, steps=[step, step], rewards=counted)


def figures(*names: str) -> Summary:
    curve = {"curves": {"pass@1": [0.25] * 8}, "intervals": {"pass@1": [0.125, 0.375]}}
    return {"metrics": dict.fromkeys(names, curve)}


AGENT = ("SR", "Sub-SR", "RRR", "ROR", "judged-SR", "completeness", "evidence", "judge-false-positives")

HEADLINES: dict[str, tuple[Callable[[], Summary], list[str]]] = {
    "answers": (
        lambda: summarise(forty()),
        ["soft score of right answers", "soft score of wrong answers", "its AUC within a problem"],
    ),
    "answers by written scores": (
        lambda: summarise(scored(fused=0.5, text_rule=1.0, text_rule_read=0.0), headline="sampled"),
        ["written score of right answers", "written score of wrong answers", "its AUC within a problem"],
    ),
    "two turns": (
        lambda: summarise(forty(rewards={"answer": 1.0, "format": 1.0, "correct_1": 1.0})),
        ["right first answers (acc@t1)", "right second answers (acc@t2)"],
    ),
    "agents": (
        lambda: summarise(talks()) | figures(*AGENT), ["task done (SR)", "judged a success, of submitted"],
    ),
    "stopping": (
        lambda: compared(four(), {"signed": 0.5}),
        ["right, the verifier ends it", "looks, the verifier ends it", "right, the model ends it itself"],
    ),
}  # fmt: skip


def lines(found: Headline) -> list[str]:
    """The table as a terminal of `WIDEST` characters shows it, without its title."""
    console = Console(width=WIDEST, file=io.StringIO())
    console.print(found.as_table())
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in written.splitlines()]


def fits(found: Headline) -> bool:
    """Whether every row stands in a line of its own, and nothing is cut off."""
    shown = lines(found)
    whole = all(cell in line for row, line in zip(found.rows, shown[2:], strict=True) for cell in row)
    return whole and len(found.rows) <= MOST and max(map(len, shown)) <= WIDEST and "…" not in "".join(shown)


@pytest.mark.parametrize("kind", HEADLINES)
def test_each_kind_of_evaluation_fits_a_terminal(kind: str) -> None:
    make, first = HEADLINES[kind]
    summary = make()
    found = headline(summary)
    assert [row[0] for row in found.rows[: len(first)]] == first
    assert fits(found) and found.columns == ["", "value", "95 % interval"]
    if kind == "stopping":
        return
    falls = {"difference": -0.1234, "interval": [-0.2345, -0.0123]}
    changes = dict.fromkeys([*summary, *(summary.get("intervals") or {}), "metrics.SR"], falls)
    stored = [Stored("x" * 22, 0.5, 123.4, "there"), Stored("y", 0.25, None, "there")]
    both = headline(summary, summary, changes, stored)
    assert fits(both) and both.columns == ["", "before", "after", "change, 95 % interval"]
    assert [row[0] for row in both.rows[-2:]] == [f"stored: {'x' * 22} [1]", "stored: y [1]"]
    assert both.notes == ["[1] stored, not measured in this run: there"]


def test_figures_have_three_digits_and_their_intervals() -> None:
    summary = {
        "samples_per_problem": 8, "score": "sampled", "score_right": 0.87654, "pass@1": 0.4321,
        "majority@8": None, "within_problem_auc": 1.0, "soft": {"within_problem_auc": 0.5},
        "intervals": {"score_right": [0.8123, 0.9], "soft.within_problem_auc": [0.45, 0.55]},
    }  # fmt: skip
    assert headline(summary).rows == [
        ["written score of right answers", "0.877", "0.812 to 0.900"],
        ["its AUC within a problem", "1.00", ""],
        ["one answer (pass@1)", "0.432", ""],
        ["AUC of the soft score", "0.500", "0.450 to 0.550"],
    ]
    looked = {"conversations": {"turns": 12.345}, "rewards": {"steps": 4.5, "tool_calls": 123.4}}
    assert [row[:2] for row in headline(looked).rows] == [
        ["looks", "4.50"], ["turns", "12.3"], ["tool calls", "123"],
    ]  # fmt: skip


def test_changes_are_those_of_the_same_problems() -> None:
    """Before, no score says anything; after, a right answer has .9 and a wrong one .1 in every problem."""
    before = [sample(f"p/{p}", k, k < 2, 0.5) for p in range(6) for k in range(4)]
    after = [sample(f"p/{p}", k, k < 2, 0.9 if k < 2 else 0.1) for p in range(6) for k in range(4)]
    found = headline(summarise(after), summarise(before), paired_difference(before, after))
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["soft score of right answers"] == ["0.500", "0.900", "+0.400 (+0.400 to +0.400)"]
    assert rows["soft score of wrong answers"] == ["0.500", "0.100", "-0.400 (-0.400 to -0.400)"]
    assert rows["its AUC within a problem"] == ["0.500", "1.00", "+0.500 (+0.500 to +0.500)"]
    assert rows["best of 4 by soft score"] == ["0.500", "1.00", "+0.500 (+0.500 to +0.500)"]
    # Without the forty of both, the difference alone is known.
    alone = headline(summarise(after), summarise(before))
    assert {row[0]: row[1:] for row in alone.rows}["its AUC within a problem"][-1] == "+0.500"


def test_what_an_evaluation_lacks_is_said_below() -> None:
    lacking: Mapping[str, Any] = {
        "pass@1": 0.5, "unjudged": 3, "score_missing": "no soft score",
        "left_out": {"problems": 2, "rows": 1},
    }  # fmt: skip
    missing, unjudged, left_out, mine = headline(lacking, notes=["mine"]).notes
    assert (missing, mine) == ("no soft score", "mine") and "3 " in unjudged and "`left_out`" in left_out
    assert headline({"pass@1": {"odd": 1}, "metrics": None}).rows == []


def test_mean_scores_of_right_and_wrong_answers() -> None:
    """Of all answers with a score: (.8 + .6 + .1) / 3 and (.2 + .4) / 2; one has none."""
    score = np.array([[0.8, 0.2, 0.6], [0.4, 0.1, np.nan]])
    right = [[True, False, True], [False, True, True]]
    rows = [
        sample(f"p/{p}", k, right[p][k], None if np.isnan(score[p, k]) else float(score[p, k]))
        for p in range(2)
        for k in range(3)
    ]
    found = summarise(rows)
    assert (found["score_right"], found["score_wrong"]) == pytest.approx((0.5, 0.3))
    assert summarise(forty(scores=False))["score_right"] is None
