"""The task `phone-judging`: its problems, and what a verdict is worth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from selfverify.core.episode import EpisodeResult, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify_phone.judging import PhoneJudging, PhoneJudgingConfig


def said(task: PhoneJudging, problem: Problem, text: str) -> EpisodeResult:
    episode = task.open(problem, 0)
    shown = episode.reset()
    assert shown.content == problem.target["case"]
    assert episode.step(PolicyTurn(text, [], Finish.STOP, 0)).done
    return episode.result()


def test_problems_are_pure_plain_and_of_every_kind() -> None:
    task, again = make_task("phone-judging"), PhoneJudging()
    problems = [task.problem("train", 0, n) for n in range(60)]
    assert problems[:20] == [again.problem("train", 0, n) for n in range(20)]
    assert all(json.loads(json.dumps(p.target)) == p.target and p.environment_begins for p in problems)
    reads = [p.meta["categories"]["read"][0] for p in problems]
    assert {*reads} == {"chosen", "all", "last", "message"}
    # Two problems in a row are about one session, and never let the judge read the same.
    assert all(one != other for one, other in zip(reads[::2], reads[1::2], strict=True))
    for one, other in zip(problems[::2], problems[1::2], strict=True):
        assert one.meta["question"] == other.meta["question"]
        assert one.target["done"] == other.target["done"]
    seen = {p.meta["question"] for p in problems}
    assert {task.problem("validation", 0, n).meta["question"] for n in range(60)} != seen


def test_the_right_verdict_earns_everything() -> None:
    task = PhoneJudging()
    for index in range(40):
        problem = task.problem("validation", 0, index)
        [turn] = task.demonstrate_turns(problem, np.random.default_rng(0))
        ending = said(task, problem, turn.text)
        irrelevant = turn.text.endswith("irrelevant")
        # What is done and cannot be seen at all is no success to a judge of evidence.
        right = float(not (irrelevant and problem.target["done"]))
        assert ending.rewards["answer"] == ending.rewards["correct"] == right
        assert ending.rewards["answer_format"] == 1.0
        assert ending.rewards["judged_true"] == float(problem.target["done"])


def test_a_wrong_verdict_and_an_unreadable_one_earn_nothing() -> None:
    task = PhoneJudging()
    problem = next(p for p in (task.problem("train", 0, n) for n in range(50)) if not p.target["done"])
    wrong = said(task, problem, " x unseen § success").rewards
    assert wrong["answer"] == 0.0 and wrong["false_positive"] == wrong["judged_positive"] == 1.0
    unreadable = said(task, problem, "I think so.").rewards
    assert unreadable["answer"] == unreadable["answer_format"] == 0.0
    assert "judged_positive" not in unreadable


@pytest.mark.parametrize("reads", [{"chosen": 0.5}, {"chosen": 1.5, "all": -0.5}, {"some": 1.0}])
def test_shares_have_to_add_up(reads: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PhoneJudgingConfig(reads=reads)  # type: ignore[arg-type]
    one = PhoneJudging(PhoneJudgingConfig(reads={"last": 1.0}))
    assert {one.problem("train", 0, n).meta["categories"]["read"][0] for n in range(6)} == {"last"}
