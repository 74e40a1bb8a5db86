"""A judge that errs as often as it is told to: counted over many cases, and always the same for one case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from selfverify.agents.evidence import Submission, Vote
from selfverify.agents.judges.case import Awaited, Ballot, Case, Judge
from selfverify.agents.judges.config import JuryConfig
from selfverify.agents.judges.jury import FlippedVotes, Jury

CASES = [Case(f"phone/{n}", "Set an alarm.", Submission("done", []), 1) for n in range(1000)]


class Certain(Judge):
    """Always says the same."""

    def __init__(self, vote: Vote | None) -> None:
        self.vote = vote

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        return lambda: [Ballot(number, self.vote, "" if self.vote else "outage") for number in numbers]


def wrong(vote: Vote, votes: int, share: float = 0.1) -> float:
    """The share of verdicts that are not what an unflipped judge would say."""
    jury = Jury(FlippedVotes(Certain(vote), share), JuryConfig(votes=votes, deciding=votes // 2 + 1))
    return float(np.mean([jury.ask(case)().success is not vote.success for case in CASES]))


@pytest.mark.parametrize("vote", [Vote(True, True), Vote(True, False), Vote(False, False)])
def test_three_votes_err_less_than_one(vote: Vote) -> None:
    """One vote errs at 0.1, two of three at 3 * 0.1^2 * 0.9 + 0.1^3 = 0.028."""
    assert wrong(vote, 1) == pytest.approx(0.1, abs=0.03)
    assert wrong(vote, 3) == pytest.approx(0.028, abs=0.016)
    assert wrong(vote, 1, share=0.0) == 0.0


def test_a_flipped_vote_says_so_and_stays_possible() -> None:
    juror = FlippedVotes(Certain(Vote(False, False, "The hall.", (1,))), 1.0)
    [ballot] = juror.ask(CASES[0], [2])()
    # There is no success by irrelevant evidence.
    assert ballot.vote == Vote(True, True, "The hall.", (1,)) and ballot.about["flipped"] is True
    assert ballot.number == 2
    [back] = FlippedVotes(Certain(Vote(True, True)), 1.0).ask(CASES[0], [0])()
    assert back.vote == Vote(True, False)


def test_the_same_case_is_judged_the_same_and_numbers_are_apart() -> None:
    juror = FlippedVotes(Certain(Vote(True, True)), 0.5)
    votes = [[ballot.vote for ballot in juror.ask(case, range(3))()] for case in CASES[:200]]
    again = [[ballot.vote for ballot in juror.ask(case, range(3))()] for case in CASES[:200]]
    assert votes == again
    said = np.array([[vote.success for vote in row if vote] for row in votes])
    assert abs(np.corrcoef(said.T)[0, 1]) < 0.2
    # A message of other words is another case.
    other = Case("phone/0", "Set an alarm.", Submission("It is set.", []), 1)
    drawn = [[b.about.get("flipped") for b in juror.ask(c, range(20))()] for c in (CASES[0], other)]
    assert drawn[0] != drawn[1]


def test_a_missing_vote_stays_missing() -> None:
    [ballot] = FlippedVotes(Certain(None), 1.0).ask(CASES[0], [0])()
    assert ballot.vote is None and "flipped" not in ballot.about
