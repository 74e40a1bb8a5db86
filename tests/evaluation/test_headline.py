"""The figures that come first: which, in which order, and in how little room."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.evaluation.test_looked import four
from tests.samples import sample

from selfverify.evaluation.headline import MOST, WIDEST, Headline, Stored, headline
from selfverify.evaluation.metrics import paired_difference, summarise
from selfverify.evaluation.samples import StoredSample, StoredStep
from selfverify.evaluation.visual_metrics import compared

Summary = dict[str, Any]


def samples(count: int = 8, scores: bool = True, **changes: Any) -> list[StoredSample]:
    """Forty problems with ``count`` answers each, the first half right and with a higher score, if any."""
    return [
        sample(f"p/{p}", k, right, (0.9 if right else 0.1) if scores else None, key=str(right), **changes)
        for p in range(40)
        for k in range(count)
        for right in [2 * k < count]
    ]


def scored(**more: float) -> list[StoredSample]:
    found = samples()
    for one in found:
        one.scores |= more
    return found


def talks(**rewards: float) -> list[StoredSample]:
    step = StoredStep("policy", 0, "action", "tap", [], "stop", {"tool_errors": 0.0}, None)
    counted = {"answer": 1.0, "format": 1.0, "tool_calls": 123.0} | rewards
    return samples(4, scores=False, steps=[step, step], rewards=counted)


def figures(*names: str) -> Summary:
    curve = {"curves": {"pass@1": [0.25] * 8}, "intervals": {"pass@1": [0.125, 0.375]}}
    return {"metrics": dict.fromkeys(names, curve)}


AGENT = ("SR", "Sub-SR", "RRR", "ROR", "judged-SR", "completeness", "evidence", "judge-false-positives")

KINDS: dict[str, tuple[Callable[[], Summary], list[str]]] = {
    "answers": (
        lambda: summarise(samples()),
        ["soft score of right answers", "soft score of wrong answers", "its AUC within a problem"],
    ),
    "answers by written scores": (
        lambda: summarise(scored(fused=0.5, text_rule=1.0, text_rule_read=0.0), headline="sampled"),
        ["written score of right answers", "written score of wrong answers", "its AUC within a problem"],
    ),
    "two turns": (
        lambda: summarise(samples(rewards={"answer": 1.0, "format": 1.0, "correct_1": 1.0})),
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


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_evaluation_fits_a_terminal(kind: str) -> None:
    make, first = KINDS[kind]
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
    assert rows["soft score of right answers"] == ["0.500", "0.900", "+0.400"]
    assert rows["soft score of wrong answers"] == ["0.500", "0.100", "-0.400"]
    assert rows["its AUC within a problem"] == ["0.500", "1.00", "+0.500"]
    assert rows["best of 4 by soft score"] == ["0.500", "1.00", "+0.500"]
    assert "of problems mixed both times" not in rows, "the same are"
    # One problem is solved by all afterwards, another has no right answer: four are left of both times.
    after = [one for one in after if one.problem not in ("p/0", "p/1")]
    after += [sample(f"p/{p}", k, p == 0, 0.5 - 0.1 * k) for p in (0, 1) for k in range(4)]
    found = headline(summarise(after), summarise(before), paired_difference(before, after))
    assert ["of problems mixed both times", "0.500", "1.00", "+0.500"] in found.rows
    # Without the samples of both, the difference alone is known.
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
    assert summarise(samples(scores=False))["score_right"] is None


def test_missing_verdicts_are_told_of_both_evaluations() -> None:
    """What is measured by the state counts without one."""
    after, before = summarise(samples()), summarise(samples())
    after["unjudged"], before["unjudged"] = 2, 3
    told = headline(after, before).notes
    assert "2 answers have no verdict, and count as wrong" in told
    assert "before training 3 answers have no verdict, and count as wrong" in told
    assert headline(after | figures("SR")).notes == ["2 answers have no verdict"]
