"""Two-turn trajectories: channels, rewards of both answers, cut-off and unjudged first turns."""

from __future__ import annotations

import pytest
from tests.rollouts.test_unjudged import Outage

from selfverify.core.credit import valid_trajectories
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.turns import Turns, follow_up
from selfverify.rollouts.rollout import before_score, make_two_turn_trajectory, roll_out
from selfverify.tasks.base import user_turn
from selfverify.tasks.digits.digits_sum import DigitsSum

TASK = DigitsSum()
PROBLEM = TASK.problem("train", 0, 0)
RIGHT, WRONG = PROBLEM.target, PROBLEM.target + 1


def said(policy: Policy, answer: object, finish: str = "stop") -> Sample:
    text = f"<think>1</think><answer>{answer}</answer><score>0.5</score>"
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*ids, policy.tokenizer.eos_token_id] if finish == "stop" else ids
    return Sample(ids, [-0.5] * len(ids), finish)  # type: ignore[arg-type]


def trajectory(policy: Policy, first: object, second: object, task: DigitsSum = TASK) -> Trajectory:
    inserted = follow_up(policy.loaded, PROBLEM, "Sure?")[1:]
    turns = Turns(said(policy, first), inserted, said(policy, second))
    return make_two_turn_trajectory(policy, task, PROBLEM, turns)


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
    turns = Turns(said(policy, WRONG), follow_up(policy.loaded, PROBLEM, "Sure?"), said(policy, RIGHT))
    whole = make_two_turn_trajectory(policy, TASK, PROBLEM, turns)
    made = make_two_turn_trajectory(policy, TASK, PROBLEM, turns, split_score=True)
    assert [s.channel for s in made.segments] == ["turn_1", "observation", "turn_2", "score"]
    assert [s.turn for s in made.segments] == [0, 1, 1, 1]
    assert made.tokens == whole.tokens and made.text == whole.text and made.logprobs == whole.logprobs
    assert made.rewards == whole.rewards and made.scores == whole.scores == {"sampled": 0.5}
    assert made.finish == "stop" and made.segments[2].text.endswith("<score>")
    assert before_score(made) == whole.tokens[: -len(made.segments[-1].tokens)]
    assert before_score(whole) is None


def test_cut_off_first_turn_has_no_second(policy: Policy) -> None:
    turns = Turns(said(policy, RIGHT, "length"), [], None)
    made = make_two_turn_trajectory(policy, TASK, PROBLEM, turns)
    assert [s.channel for s in made.segments] == ["turn_1"]
    assert made.truncated and made.rewards["correct"] == 0.0 and made.rewards["answer_format"] == 0.0


@pytest.mark.parametrize(("first", "second"), [(1, RIGHT), (RIGHT, 1), (2, "nonsense")])
def test_one_unjudged_answer_takes_the_trajectory_out(policy: Policy, first: object, second: object) -> None:
    made = trajectory(policy, first, second, Outage())
    assert valid_trajectories(Group(PROBLEM, [made]), False).tolist() == [False]
    assert made.parsed.unjudged


def test_words_without_room_are_refused(policy: Policy) -> None:
    with pytest.raises(DataError, match=f"{PROBLEM.id}: the second turn's prompt takes"):
        roll_out(policy, TASK, [PROBLEM], [0], SamplingConfig(), "Sure? " * 3000)


def test_text_only_model(load_policy: object) -> None:
    """Same path, with messages as strings."""
    policy = load_policy("llama")  # type: ignore[operator]
    problem = Problem("t", user_turn("What is 1+1?", images=0), target=2)
    sampling = SamplingConfig(group_size=4, max_new_tokens=30)
    rollout = roll_out(policy, TASK, [problem], [3], sampling, "Sure?")
    for made in rollout.groups[0].trajectories:
        assert made.truncated or "Sure?" in made.segments[1].text
