"""An outage of the judge is neither success nor failure."""

from __future__ import annotations

import pytest

from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish, Group, valid_trajectories
from selfverify.methods.metrics import group_metrics
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import recite
from selfverify.tasks.base import Verdict
from selfverify.tasks.digits import DigitsSum


class Outage(DigitsSum):
    """Answers of 1 cannot be judged, those of 2 break the judge's data."""

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        match tagged.fields["answer"]:
            case "1":
                return Verdict(1.0, True, unjudged="timed out twice")
            case "2":
                raise DataError("the reference is gone")
        return super().judge(problem, tagged)


def test_unjudged_trajectories_take_no_part(policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    task = Outage()
    problem = task.problem("train", 0, 0)
    right = problem.target
    rows = []
    for answer in (1, 2, right, "nonsense"):
        text = f"<think>1</think><answer>{answer}</answer><score>0.5</score>"
        ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"] + [policy.tokenizer.eos_token_id]
        said = Sample(ids, [0.0] * len(ids), Finish.STOP)
        rows.append(recite(policy, problem, task.open(problem, 0), [said]))
    group = Group(problem, rows)
    assert [t.finish for t in rows] == ["error", "error", "stop", "stop"]
    assert valid_trajectories(group, False).tolist() == [False, False, True, True]
    # Their rewards are nobody's: two answers with a verdict, one of them right.
    assert group_metrics([group])["accuracy"] == 0.5
    assert group_metrics([Group(problem, rows[:2])]) == {}
    assert [r.__dict__["fields"]["reason"] for r in caplog.records] == [
        "timed out twice",
        "the reference is gone",
    ]
    assert all(r.__dict__["fields"]["problem"] == problem.id for r in caplog.records)
