"""Scores are read in the form that they were written in."""

from __future__ import annotations

import pytest

from rounding import assert_close
from selfverify.core.score_tokens import decimals_of
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout, recite
from selfverify.rollouts.score_reading import read_rollout_scores, written_score


@pytest.mark.parametrize(
    ("text", "decimals"),
    [
        ("0.8</score>", 1),
        ("1</score>", 1),
        ("0.85</score>.", 2),
        ("0.8500</score>", 2),
        (" 0.07 </score>", 2),
    ],
)
def test_the_decimals_of_a_written_score(text: str, decimals: int) -> None:
    assert decimals_of(written_score(Trajectory([Segment("score", [1], text=text)]))) == decimals


def test_an_answer_is_read_by_its_own_form_alone(policy: Policy) -> None:
    """Two decimals give another expectation than tenths; neighbours change nothing."""
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)

    def group(*scores: str) -> Group:
        told = []
        for score in scores:
            text = f"<think>1+1=2</think><answer>1 1</answer><score>{score}</score>"
            ids = [
                *policy.tokenizer(text, add_special_tokens=False)["input_ids"],
                policy.tokenizer.eos_token_id,
            ]
            sample = Sample(ids, [0.0] * len(ids), Finish.STOP)
            told.append(recite(policy, problem, task.open(problem, 0), [sample]))
        return Group(problem, told)

    def read(*scores: str, as_written: bool = True) -> list[float]:
        made = group(*scores)
        read_rollout_scores(policy, Rollout(policy.encode([problem]), [made]), as_written=as_written)
        return [trajectory.scores["soft"] for trajectory in made.trajectories]

    [tenths], [hundredths] = read("0.8"), read("0.85")
    assert_close(read("0.8", "0.85", "0.31"), [tenths, hundredths, hundredths])
    assert_close(read("0.85", as_written=False), read("0.8", as_written=False))
    assert abs(tenths - hundredths) > 1e-3
