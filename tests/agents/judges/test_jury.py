"""Votes and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from selfverify.agents.evidence import Submission, Vote
from selfverify.agents.judges.case import Awaited, Ballot, Case, Judge
from selfverify.agents.judges.config import JuryConfig
from selfverify.agents.judges.jury import Jury, tally

S, F, I = Vote(True, True), Vote(True, False), Vote(False, False)  # noqa: E741
"""Success; failure that relevant evidence proves; evidence that is not relevant."""
CASE = Case("phone/1", "Set an alarm.", Submission("done", []), 3)


def ballots(votes: Sequence[Vote | None]) -> list[Ballot]:
    return [Ballot(n, vote, "" if vote else "outage: gone") for n, vote in enumerate(votes)]


@pytest.mark.parametrize(
    ("votes", "valid", "success"),
    [
        ([S, S, S], True, True),
        ([S, S, F], True, True),
        ([S, S, I], True, True),
        ([F, S, F], True, False),
        ([F, F, I], True, False),
        ([I, I, S], False, False),
        ([I, I, I], False, False),
        # An outage is no vote: two of the other two decide.
        ([S, None, S], True, True),
        ([None, F, F], True, False),
        ([None, I, I], False, False),
    ],
)
def test_two_of_three_decide(votes: list[Vote | None], valid: bool, success: bool) -> None:
    found = tally(ballots(votes), 2)
    assert (found.valid, found.success, found.decided) == (valid, success, True)


@pytest.mark.parametrize(
    ("votes", "valid", "success", "why"),
    [
        ([None, None, None], None, None, "0 of 3 votes, and no 2 agree on success (outage: gone)"),
        # The authors' release takes this one for a success.
        ([S, None, None], None, None, "1 of 3 votes, and no 2 agree on success (outage: gone)"),
        ([S, F, None], True, None, "2 of 3 votes, and no 2 agree on success (outage: gone)"),
        # A failure, but relevant or not?
        ([F, I, None], None, False, "2 of 3 votes, and no 2 agree on relevance (outage: gone)"),
    ],
)
def test_anything_else_is_no_verdict(
    votes: list[Vote | None], valid: bool | None, success: bool | None, why: str
) -> None:
    found = tally(ballots(votes), 2)
    assert (found.valid, found.success, found.decided, found.why) == (valid, success, False, why)


def test_a_success_is_always_relevant() -> None:
    """Whatever the votes are, as each vote for success is one for relevance."""
    kinds = (S, F, I, None)
    for votes in [(a, b, c) for a in kinds for b in kinds for c in kinds]:
        found = tally(ballots(votes), 2)
        assert found.valid or not found.success


def test_a_judgement_is_plain_json() -> None:
    vote = Vote(True, False, "Round 2.", (2,), {"quotations": 1})
    found = tally([Ballot(0, vote, about={"seconds": 0.5}), *ballots([F, None])[1:]], 2).as_json()
    assert found["ballots"][0] == {
        "number": 0,
        "vote": {
            "valid": True,
            "success": False,
            "words": "Round 2.",
            "rounds": (2,),
            "about": {"quotations": 1},
        },
        "missing": "",
        "about": {"seconds": 0.5},
    }


class Written(Judge):
    """Gives the votes that it was made with, and remembers which were asked for."""

    def __init__(self, *votes: Vote | None) -> None:
        self.votes, self.asked = votes, list[list[int]]()

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        self.asked.append([*numbers])
        return lambda: [ballots(self.votes)[n] for n in numbers]


def test_all_votes_are_asked_for_at_once() -> None:
    juror = Written(S, F, S)
    wait = Jury(juror).ask(CASE)
    assert juror.asked == [[0, 1, 2]] and wait().success is True


@pytest.mark.parametrize(
    ("votes", "asked", "success"),
    [
        ([S, S, F], [[0, 1]], True),
        ([F, F, S], [[0, 1]], False),
        ([S, F, S], [[0, 1], [2]], True),
        ([S, None, S], [[0, 1], [2]], True),
        ([F, I, F], [[0, 1], [2]], False),  # not decided whether it is relevant
        ([None, None, S], [[0, 1], [2]], None),
    ],
)
def test_stopping_early_saves_the_third_vote(
    votes: list[Vote | None], asked: list[list[int]], success: bool | None
) -> None:
    juror = Written(*votes)
    found = Jury(juror, JuryConfig(stop_early=True)).ask(CASE)()
    assert (juror.asked, found.success) == (asked, success)
    assert [ballot.number for ballot in found.ballots] == [n for numbers in asked for n in numbers]


@pytest.mark.parametrize("votes", [{"votes": 3, "deciding": 1}, {"votes": 4, "deciding": 2}, {"deciding": 4}])
def test_both_sides_cannot_win(votes: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="more than half"):
        JuryConfig(**votes)
