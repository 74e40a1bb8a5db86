"""The next action on a phone: prompt, verdicts, what ADPO makes of them, and a run end to end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.row_data import call_answer, mobile, mobile_row

from sampled_threads import drawn
from selfverify.core.errors import DataError
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Group, Trajectory
from selfverify.experiments.registry import make_method
from selfverify.methods.metrics import group_metrics
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.mobile import Mobile
from tables import yaml_cases


def texts(task: Mobile) -> tuple[str, str]:
    """The system's and the user's text."""
    system, user = task.problem("test", 0, 0).messages
    assert user["content"][1] == {"type": "image"}
    return system["content"][0]["text"], user["content"][0]["text"]


def test_prompt_shows_goal_history_and_the_screen_as_the_model_sees_it() -> None:
    row = mobile_row(
        history=[
            {"action": "open", "text": "Clock"},
            {"name": "mobile_use", "arguments": {"action": "click", "coordinate": [1080, 600]}},
            "scrolled down",
        ],
        step_instruction="Tap the switch",
    )
    system, user = texts(mobile(row, space=(1092, 2408), step_instruction=True))
    assert "1092x2408" in system and '"mobile_use"' in system and "<score></score>" in system
    assert user.splitlines() == [
        "Goal: Turn the alarm off",
        "Now: Tap the switch",
        "Actions so far:",
        '1. {"name": "mobile_use", "arguments": {"action": "open", "text": "Clock"}}',
        '2. {"name": "mobile_use", "arguments": {"action": "click", "coordinate": [1092, 602]}}',
        "3. scrolled down",
        "Screen:",
    ]
    assert "Tap the switch" not in texts(mobile(row))[1]
    assert "\nActions so far:\n3. scrolled down\nScreen" in texts(mobile(row, history=1))[1]
    assert "Actions so far: none\n" in texts(mobile(mobile_row(history=[])))[1]
    assert "Actions so far: none\n" in texts(mobile(row, history=0))[1]
    # An episode that was begun in landscape goes on in portrait.
    turned = mobile_row(history=[{"action": "click", "coordinate": [2160, 600]}])
    assert '"coordinate": [2000, 250]' in texts(mobile(turned))[1]


@yaml_cases
def test_verdicts(arguments: dict[str, Any] | str, parts: list[int]) -> None:
    """The target is the middle of 1080 x 2400; the model writes thousandths."""
    task = mobile()
    judged = task.judge(task.problem("test", 0, 0), call_answer(arguments))
    assert judged.parts == dict(zip(("type", "arguments", "grounding"), parts, strict=True))
    assert judged.reward == parts[0] + parts[1]
    assert judged.correct == (parts[1] == 1) and judged.quality == parts[1]
    assert (judged.answer is None) == (judged.key is None) == isinstance(arguments, str)


def test_answers_are_pixels_of_the_screen() -> None:
    task = mobile(space=(1092, 2408))
    judged = task.judge(
        task.problem("test", 0, 0), call_answer({"action": "click", "coordinate": [546, 1205]})
    )
    assert judged.answer == {"action": "click", "coordinate": [540.0, 1201.0]}
    json.dumps(judged.answer)


def test_steps_without_a_place_have_no_grounding() -> None:
    task = mobile(mobile_row(action={"action": "wait"}))
    problem = task.problem("test", 0, 0)
    assert task.judge(problem, call_answer({"action": "wait"})).parts == {"type": 1.0, "arguments": 1.0}
    assert task.unreadable(problem).parts == {"type": 0.0, "arguments": 0.0}


def test_profiles_decide() -> None:
    """A click in a corner is in the target's box, which not all of them look at."""
    for profile, right in (("adpo", False), ("gui-odyssey", True)):
        task = mobile(mobile_row(ui_boxes=[[0, 0, 1080, 2400]]), profile=profile)
        judged = task.judge(
            task.problem("test", 0, 0), call_answer({"action": "click", "coordinate": [0, 0]})
        )
        assert judged.correct == right


@yaml_cases
def test_broken_rows_are_named(changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    task = mobile(mobile_row(**changes), **options)
    with pytest.raises(DataError, match=rf"mobile/test/7/2: {message}"):
        task.problem("test", 0, 0)


@yaml_cases
def test_demonstrations_are_read_back(action: dict[str, Any]) -> None:
    task, rng = mobile(mobile_row(action=action), space=(1092, 2408)), np.random.default_rng(0)
    problem = task.problem("train", 0, 0)
    for wrong in [False] + [True] * 20:
        shown = task.demonstrate(problem, rng, wrong)
        text = "".join(text for _, text in shown.pieces) + "<score>0.5</score>"
        tagged = parse_tagged(text, task.tags)
        judged = task.judge(problem, tagged)
        assert tagged.answer_ok and tagged.score_ok and judged.answer is not None
        assert judged.reward / 2 == shown.quality and judged.correct == (not wrong)
        assert (shown.pieces[0][0] == "context") == wrong


def written(arguments: dict[str, Any], score: str) -> str:
    call = json.dumps({"name": "mobile_use", "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call><score>{score}</score>"


RIGHT = {"action": "click", "coordinate": [500, 500]}
NEARLY = {"action": "click", "coordinate": [10, 10]}


def trajectories(policy: Policy, task: Mobile) -> tuple[Group, list[Trajectory]]:
    """Right, of the right type only, malformed JSON, malformed tags."""
    problem = task.problem("train", 0, 0)
    rows = [
        recite(policy, problem, task.open(problem, 0), [drawn(policy, text)])
        for text in (
            written(RIGHT, "0.9"),
            written(NEARLY, "0.2"),
            "<tool_call>click</tool_call><score>0.3</score>",
            written(RIGHT, "0.8").split("<score>")[0] + written(RIGHT, "0.8"),
        )
    ]
    return Group(problem, rows), rows


def test_channels_and_rewards(policy: Policy) -> None:
    """The score's tokens are those behind its opening tag; malformed output is paid nothing."""
    group, rows = trajectories(policy, mobile())
    for row in rows:
        assert [s.channel for s in row.segments] == ["answer", "score"]
        assert row.segments[0].text.endswith("</tool_call><score>")
        assert row.rewards["score_format"] == 1
    assert [row.rewards["answer"] for row in rows] == [2, 1, 0, 0]
    assert [row.rewards["correct"] for row in rows] == [1, 0, 0, 0]
    assert [row.rewards["quality"] for row in rows] == [1, 0, 0, 0]
    assert [row.rewards["type"] for row in rows] == [1, 1, 0, 0]
    assert [row.rewards["grounding"] for row in rows] == [1, 0, 0, 0]
    assert [row.rewards["answer_format"] for row in rows] == [1, 1, 1, 0]
    logged = group_metrics([group])
    assert (logged["reward/answer"], logged["reward/type"]) == (0.75, 0.5)
    assert (logged["reward/arguments"], logged["reward/grounding"], logged["accuracy"]) == (0.25, 0.25, 0.25)


def test_what_follows_the_score_is_no_action(policy: Policy) -> None:
    """A second call behind the score costs the score, and is not read; the first one is the answer."""
    task = mobile()
    twice = written(NEARLY, "0.8") + written(RIGHT, "0.8")
    problem = task.problem("train", 0, 0)
    row = recite(policy, problem, task.open(problem, 0), [drawn(policy, twice)])
    assert row.rewards["answer"] == 1 and row.rewards["score_format"] == 0 and row.scores == {}


def test_contrast_is_step_success(policy: Policy) -> None:
    """Answers learn from 2, 1, 0, 0; scores are compared between the right one and the others alone.

    Right scores 0.9, the others 0.2, 0.3 and 0.8: all three pairs are concordant. Were contrast decided by
    the reward, the score 0.2 of the answer worth 1 would be below the 0.3 of one worth 0, and earn less.
    """
    group, rows = trajectories(policy, mobile())
    valid = torch.ones(4, dtype=torch.bool)
    adpo = make_method("adpo", format_weight=0.0)
    answer, score = adpo.credit(group, valid)
    assert [row.rewards["verification"] for row in rows] == [1, 1, 1, 1]
    assert answer.advantage[0] > answer.advantage[1] > answer.advantage[2]
    assert (answer.channel, score.channel) == ("answer", "score")
    binary = make_method("adpo", verification="binary")
    binary.credit(group, valid)  # type: ignore[attr-defined]
    assert [row.rewards["verification"] for row in rows] == [1, 1, 1, 0]  # 0.8 for a wrong one


def test_expected_credit_reads_the_scores_behind_a_call(policy: Policy) -> None:
    task = mobile()
    group, rows = trajectories(policy, task)
    read_rollout_scores(policy, Rollout(policy.encode([group.problem]), [group]))
    assert all(0 <= row.scores["soft"] <= 1 for row in rows)
    adpo = make_method("adpo", verification_credit="expected")
    _, score = adpo.credit(group, torch.ones(4, dtype=torch.bool))
    assert score.choices is not None and set(score.choices.rows.tolist()) == {0, 1, 2, 3}
