"""Two-turn trajectories: channels, rewards of both answers, turns that were cut off or have no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from sampled_threads import drawn
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Group, Trajectory, valid_trajectories
from selfverify.methods.metrics import group_metrics
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import longest_row
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import opening, rollout
from selfverify.rollouts.score_reading import before_score
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.answering import SelfCorrection
from selfverify.tasks.base import Verdict
from selfverify.tasks.digits import DigitsSum
from tiny_models import boosted

TASK = DigitsSum()
PROBLEM = TASK.problem("train", 0, 0)
RIGHT, WRONG = PROBLEM.target, PROBLEM.target + 1


def said(policy: Policy, answer: object, ends: bool = True) -> Sample:
    return drawn(policy, f"<think>1</think><answer>{answer}</answer><score>0.5</score>", ends)


def trajectory(policy: Policy, first: object, second: object, task: DigitsSum = TASK) -> Trajectory:
    return told(policy, [said(policy, first), said(policy, second)], task)


def told(
    policy: Policy, turns: list[Sample], task: DigitsSum = TASK, split_score: bool = False
) -> Trajectory:
    asked = SelfCorrection(PROBLEM, task.tags, task.verdict, "Sure?", split_score=split_score)
    return recite(policy, PROBLEM, asked, turns)


def test_channels_and_rewards(policy: Policy) -> None:
    made = trajectory(policy, WRONG, RIGHT)
    assert [s.channel for s in made.segments] == ["turn_1", "observation", "turn_2"]
    assert [s.turn for s in made.segments] == [0, 1, 1]
    first, words, second = made.segments
    assert words.author == "environment" and "Sure?" in words.text
    mask = made.channel_mask(["turn_1", "observation", "turn_2"])
    assert mask == [True] * len(first.tokens) + [False] * len(words.tokens) + [True] * len(second.tokens)
    assert len(made.logprobs) == len(made.tokens)
    assert (made.rewards["correct_1"], made.rewards["correct"]) == (0.0, 1.0)
    assert trajectory(policy, RIGHT, "nonsense").rewards["correct"] == 0.0
    assert made.parsed.answer == RIGHT


def test_a_score_of_its_own(policy: Policy) -> None:
    """The same tokens and rewards; the second turn's score, closing tag and end token are cut off it."""
    turns = [said(policy, WRONG), said(policy, RIGHT)]
    whole = told(policy, turns)
    made = told(policy, turns, split_score=True)
    assert [s.channel for s in made.segments] == ["turn_1", "observation", "turn_2", "score"]
    assert [s.turn for s in made.segments] == [0, 1, 1, 1]
    assert made.tokens == whole.tokens and made.text == whole.text and made.logprobs == whole.logprobs
    assert made.rewards == whole.rewards and made.scores == whole.scores == {"sampled": 0.5}
    assert made.finish == "stop" and made.segments[2].text.endswith("<score>")
    assert before_score(made) == whole.tokens[: -len(made.segments[-1].tokens)]
    assert before_score(whole) is None


def test_cut_off_first_turn_has_no_second(policy: Policy) -> None:
    made = told(policy, [said(policy, RIGHT, ends=False), said(policy, RIGHT)])
    assert [s.channel for s in made.segments] == ["turn_1"]
    assert made.truncated and made.rewards["correct"] == 0.0 and made.rewards["answer_format"] == 0.0


@pytest.mark.parametrize(("first", "second"), [(1, RIGHT), (RIGHT, 1), (2, "nonsense")])
def test_one_unjudged_answer_takes_the_trajectory_out(policy: Policy, first: object, second: object) -> None:
    made = trajectory(policy, first, second, Outage())
    assert valid_trajectories(Group(PROBLEM, [made]), False).tolist() == [False]
    assert made.parsed.unjudged and made.rewards["correct"] == 0.0


def test_what_is_over_before_the_first_word_ends_wrong(policy: Policy) -> None:
    """With a context that is full by then, as a single answer does: nothing has failed."""
    ending = SelfCorrection(PROBLEM, TASK.tags, TASK.verdict, "Sure?").result()
    assert not ending.lost and (ending.rewards["correct_1"], ending.rewards["correct"]) == (0.0, 0.0)


def test_words_without_room_end_the_conversation(load_policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What was said before them counts, as of any turn that was cut off."""
    policy, sampling = boosted(load_policy(), 1e3), SamplingConfig(group_size=2)
    room = longest_row(policy.model)
    begin, limits = opening(TASK, "Sure? " * 3000)
    sampler = PolicySampler(policy, sampling)
    made = rollout(sampler, TASK, [PROBLEM], [0], sampling.group_size, open_episode=begin, limits=limits)
    assert [[s.channel for s in t.segments] for t in made.groups[0].trajectories] == [["turn_1"]] * 2
    assert [t.finish for t in made.groups[0].trajectories] == ["length"] * 2
    assert [t.rewards["correct"] for t in made.groups[0].trajectories] == [0.0] * 2
    events = [r.__dict__["fields"] for r in caplog.records if r.__dict__.get("event") == "context_full"]
    assert [event["problem"] for event in events] == [PROBLEM.id] * 2
    assert f"limit of {room} tokens" in caplog.text


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
    rows = [
        recite(policy, problem, task.open(problem, 0), [said(policy, answer)])
        for answer in (1, 2, right, "nonsense")
    ]
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
