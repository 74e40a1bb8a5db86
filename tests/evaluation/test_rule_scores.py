"""Rules on an answer's text as verifiers that cost nothing."""

from __future__ import annotations

import pytest
from tests.samples import sample

from selfverify.core.problem import Problem
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import with_rule_scores
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task

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


def test_who_writes_no_transcription_has_the_first_rule_only() -> None:
    asked = [sample("p/0", 0, True, 0.5, text=written("2+4+5=11"))]
    (told,) = with_rule_scores(asked, make_task("digits-pick"), {"p/0": PROBLEM})
    assert told.scores["text_rule"] == 1.0 and "text_rule_read" not in told.scores


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
