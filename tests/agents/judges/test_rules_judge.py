"""The rules of a task as judge."""

from __future__ import annotations

import pytest

from selfverify.agents.cases import Case, Weighed
from selfverify.agents.exhibits import Submission
from selfverify.agents.judges.rules_judge import RulesJudge, admits_failure


def vote(message: str, weighed: Weighed) -> tuple[bool, bool]:
    case = Case("phone/1", "Set an alarm.", Submission(message, []), 3, lambda submission: weighed)
    [ballot] = RulesJudge().ask(case, [0])()
    assert ballot.vote is not None
    return ballot.vote.valid, ballot.vote.success


@pytest.mark.parametrize(
    ("weighed", "expected"),
    [
        (Weighed(True, True), (True, True)),
        (Weighed(True, False), (True, False)),
        (Weighed(True, None), (True, False)),  # what is not shown is not assumed
        (Weighed(False, None), (False, False)),
        (Weighed(False, True), (False, False)),
    ],
)
def test_only_what_is_proven_is_a_success(weighed: Weighed, expected: tuple[bool, bool]) -> None:
    assert vote("I set the alarm to 7:30.", weighed) == expected


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
    assert vote(message, Weighed(True, True)) == (True, False)


@pytest.mark.parametrize(
    "message",
    ["Done.", "The alarm is set to 7:30.", "Nothing is due on Friday.", "", "Notes: can opener", "12"],
)
def test_other_messages_admit_nothing(message: str) -> None:
    assert not admits_failure(message)


def test_a_case_without_rules_is_refused() -> None:
    with pytest.raises(ValueError, match="phone/1 has no rules"):
        RulesJudge().ask(Case("phone/1", "", Submission("", []), 0), [0])
