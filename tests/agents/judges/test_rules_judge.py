"""The rules of a task as judge."""

from __future__ import annotations

import pytest

from selfverify.agents.evidence import Exhibit, Submission, Vote
from selfverify.agents.goals import Goal
from selfverify.agents.judges.case import Case
from selfverify.agents.judges.jury import RulesJudge, admits_failure
from selfverify.core.episode import Call, StepResult

GOAL = Goal.read({"needs": [{"type": "has", "kind": "lamp", "key": "oven", "values": {"on": True}}]})
ON, OFF = ("lamp/oven", "on", True), ("lamp/oven", "on", False)
OTHER, ELSEWHERE = ("lamp/oven", "colour", "red"), ("lamp/door", "on", True)


def vote(message: str, *screens: tuple[str, str, object]) -> Vote:
    exhibits = [
        Exhibit(Call("look"), StepResult(n, info={"facts": [fact]}))
        for n, fact in enumerate(screens, start=1)
    ]
    case = Case("lamps/1", "Switch on the oven's lamp.", Submission(message, exhibits), 3, GOAL)
    ballots = RulesJudge().ask(case, [0, 1])()
    assert [ballot.number for ballot in ballots] == [0, 1] and ballots[0].vote == ballots[1].vote
    assert ballots[0].vote is not None
    return ballots[0].vote


@pytest.mark.parametrize(
    ("screens", "valid", "success"),
    [
        ([ON], True, True),
        ([OFF], True, False),  # it proves the failure, and has to do with the task
        ([OTHER], True, False),  # what is not shown is not assumed
        ([ELSEWHERE], False, False),
        ([ON, OFF], True, False),  # the later screen wins
        ([OFF, ON], True, True),
        ([ON, ELSEWHERE], True, True),
    ],
)
def test_only_what_is_proven_is_a_success(
    screens: list[tuple[str, str, object]], valid: bool, success: bool
) -> None:
    found = vote("The lamp is on.", *screens)
    assert (found.valid, found.success) == (valid, success)


def test_reasons_name_rounds() -> None:
    found = vote("The lamp is on.", ELSEWHERE, ON)
    assert found.rounds == (2,) and found.words == "lamp oven: on is True: shown"
    assert vote("Sorry.", OTHER).words.splitlines() == [
        "The message admits a failure.",
        "lamp oven: on is True: not shown",
    ]


@pytest.mark.parametrize(
    "message",
    [
        "I could not find the alarm.",
        "I couldn’t set it.",
        "It is impossible.",
        "The app FAILED to save it.",
        "I was not able to do it.",
        "I'm unable to open the app, sorry",
        "The task cannot be completed.",
        "It is not done.",
        "I gave up.",
    ],
)
def test_an_admitted_failure_is_one_whatever_is_shown(message: str) -> None:
    assert admits_failure(message)
    found = vote(message, ON)
    assert (found.valid, found.success) == (True, False)


@pytest.mark.parametrize(
    "message",
    ["Done.", "The alarm is set to 7:30.", "Nothing is due on Friday.", "", "Notes: can opener", "12"],
)
def test_other_messages_admit_nothing(message: str) -> None:
    assert not admits_failure(message)


def test_a_case_without_a_goal_is_refused() -> None:
    with pytest.raises(ValueError, match="phone/1 has no goal"):
        RulesJudge().ask(Case("phone/1", "", Submission("", []), 0), [0])
