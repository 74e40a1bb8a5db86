"""Votes and what they come to; judges that need no model, and one that errs as often as it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from selfverify.agents.evidence import Exhibit, Submission, Vote
from selfverify.agents.goals import Goal
from selfverify.agents.judges.case import Awaited, Ballot, Case, Judge
from selfverify.agents.judges.config import Flips, JuryConfig
from selfverify.agents.judges.jury import Jury, RulesJudge, admits_failure, tally
from selfverify.core.episode import Call, StepResult
from tables import yaml_cases

S, F, I = Vote(True, True), Vote(True, False), Vote(False, False)  # noqa: E741
"""Success; failure that relevant evidence proves; evidence that is not relevant."""
CASE = Case("phone/1", "Set an alarm.", Submission("done", []), 3)
KINDS = {"S": S, "F": F, "I": I, "-": None}


def ballots(votes: Sequence[Vote | None]) -> list[Ballot]:
    return [Ballot(n, vote, "" if vote else "outage: gone") for n, vote in enumerate(votes)]


@yaml_cases
def test_two_of_three_decide(votes: str, valid: bool | None, success: bool | None, why: str) -> None:
    found = tally(ballots([KINDS[vote] for vote in votes]), 2)
    assert (found.valid, found.success, found.decided, found.why) == (valid, success, not why, why)


def test_missing_votes_are_counted_by_verdict(caplog: pytest.LogCaptureFixture) -> None:
    """Each has an event that says why; above 5 % there is a warning with the shares."""
    votes = {"done": Written(S, S, S), "missed": Written(F, F, None), "lost": Written(None)}
    jury = Jury(votes["done"])
    for name, count in (("done", 30), ("missed", 3), ("lost", 1)):
        jury.judge = votes[name]
        for _ in range(count):
            jury.ask(CASE)()
    shares = {"successes": 0.0, "failures": 1 / 3, "undecided": 1.0}
    assert jury.counters() == {f"judge/missing_of_{name}": share for name, share in shares.items()}
    assert caplog.text.count("vote 2 is missing: outage: gone") == 4
    assert "6 of 102 votes are missing (successes 0.0%, failures 33.3%, undecided 100.0%)" in caplog.text


def test_a_judgement_is_plain_json() -> None:
    vote = Vote(True, False, "Round 2.", (2,), {"quotations": 1})
    found = tally([Ballot(0, vote, about={"seconds": 0.5}), *ballots([F, None])[1:]], 2).as_json()
    said = {"valid": True, "success": False, "words": "Round 2.", "rounds": (2,), "about": {"quotations": 1}}
    assert found["ballots"][0] == {"number": 0, "vote": said, "missing": "", "about": {"seconds": 0.5}}


class Written(Judge):
    """Gives the votes that it was made with, again and again, and remembers which were asked for."""

    def __init__(self, *votes: Vote | None) -> None:
        self.votes, self.asked = votes, list[list[int]]()

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        self.asked.append([*numbers])
        given = self.votes * (max(numbers) + 1)
        return lambda: [ballots(given)[n] for n in numbers]


@yaml_cases
def test_stopping_early_saves_the_third_vote(votes: str, third: bool, success: bool | None) -> None:
    juror, all_at_once = (Written(*[KINDS[vote] for vote in votes]) for _ in range(2))
    found = Jury(juror, JuryConfig(stop_early=True)).ask(CASE)()
    assert (juror.asked, found.success) == ([[0, 1], [2]] if third else [[0, 1]], success)
    assert [ballot.number for ballot in found.ballots] == [*range(2 + third)]
    assert Jury(all_at_once).ask(CASE)().success is success and all_at_once.asked == [[0, 1, 2]]


@pytest.mark.parametrize("votes", [{"votes": 3, "deciding": 1}, {"votes": 4, "deciding": 2}, {"deciding": 4}])
def test_both_sides_cannot_win(votes: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="more than half"):
        JuryConfig(**votes)


CASES = [Case(f"phone/{n}", "Set an alarm.", Submission("done", []), 1) for n in range(1000)]


def wrong(vote: Vote, votes: int, share: float = 0.1) -> float:
    """The share of verdicts that are not what an unflipped judge would say."""
    jury = Jury(Written(vote), JuryConfig(votes=votes, deciding=votes // 2 + 1), share)
    return float(np.mean([jury.ask(case)().success is not vote.success for case in CASES]))


@pytest.mark.parametrize("vote", [Vote(True, True), Vote(True, False), Vote(False, False)])
def test_three_votes_err_less_than_one(vote: Vote) -> None:
    """One vote errs at 0.1, two of three at 3 * 0.1^2 * 0.9 + 0.1^3 = 0.028."""
    assert wrong(vote, 1) == pytest.approx(0.1, abs=0.03)
    assert wrong(vote, 3) == pytest.approx(0.028, abs=0.016)
    assert wrong(vote, 1, share=0.0) == 0.0


def cast(case: Case, vote: Vote | None, votes: int, share: float) -> list[Ballot]:
    """The ballots of a jury of which a share is flipped."""
    return [*Jury(Written(vote), JuryConfig(votes=votes, deciding=votes), share).ask(case)().ballots]


def test_a_flipped_vote_says_so_and_stays_possible() -> None:
    ballot = cast(CASES[0], Vote(False, False, "The hall.", (1,)), 3, 1.0)[2]
    # There is no success by irrelevant evidence.
    assert ballot.vote == Vote(True, True, "The hall.", (1,)) and ballot.about["flipped"] is True
    assert ballot.number == 2
    assert cast(CASES[0], Vote(True, True), 1, 1.0)[0].vote == Vote(True, False)
    [missing] = cast(CASES[0], None, 1, 1.0)
    assert missing.vote is None and "flipped" not in missing.about


def test_the_same_case_is_judged_the_same_and_numbers_are_apart() -> None:
    right = Vote(True, True)
    votes, again = ([[b.vote for b in cast(case, right, 3, 0.5)] for case in CASES[:200]] for _ in range(2))
    assert votes == again
    said = np.array([[vote.success for vote in row if vote] for row in votes])
    assert abs(np.corrcoef(said.T)[0, 1]) < 0.2
    # A message of other words is another case.
    other = Case("phone/0", "Set an alarm.", Submission("It is set.", []), 1)
    drawn = [[b.about.get("flipped") for b in cast(case, right, 20, 0.5)] for case in (CASES[0], other)]
    assert drawn[0] != drawn[1]


def believed(flips: Flips, votes: int, vote: Vote = Vote(True, False), said: str = "Done.") -> float:
    """The share of 1,000 verdicts that are a success, of a jury that flips three votes in ten."""
    jury = Jury(Written(vote), JuryConfig(votes=votes, deciding=votes // 2 + 1), 0.3, flips)
    said_so = [replace(case, submission=Submission(said, [])) for case in CASES]
    return float(np.mean([jury.ask(case)().success for case in said_so]))


def test_a_jury_outvotes_errors_of_single_votes_and_not_those_of_cases() -> None:
    """One vote believes 0.3 of failures; two of three 3 * 0.3^2 * 0.7 + 0.3^3 = 0.216; alike, 0.3 again."""
    assert believed("failures", 1) == pytest.approx(0.3, abs=0.045)
    assert believed("failures", 3) == pytest.approx(0.216, abs=0.04)
    assert believed("claims", 3) == believed("claims", 1) == pytest.approx(0.3, abs=0.045)
    # Neither takes a success for a failure.
    assert believed("failures", 1, Vote(True, True)) == believed("claims", 1, Vote(True, True)) == 1.0


@pytest.mark.parametrize("said", ["7:30", "Not done.", "I was unsuccessful.", "I could not get it done.", ""])
def test_only_a_message_that_claims_success_deceives(said: str) -> None:
    assert believed("claims", 1, said=said) == 0.0


@pytest.mark.parametrize("said", ["It is finished", "SUCCESS", "The task was completed successfully."])
def test_a_claim_is_read_in_other_words(said: str) -> None:
    assert believed("claims", 1, said=said) > 0.2


GOAL = Goal.read({"needs": [{"type": "has", "kind": "lamp", "key": "oven", "values": {"on": True}}]})
ON, ELSEWHERE = ("lamp/oven", "on", True), ("lamp/door", "on", True)


def vote(message: str, *screens: tuple[str, str, object]) -> Vote:
    shown = [StepResult(n, info={"facts": [fact]}) for n, fact in enumerate(screens, start=1)]
    exhibits = [Exhibit(Call("look"), seen) for seen in shown]
    case = Case("lamps/1", "Switch on the oven's lamp.", Submission(message, exhibits), 3, GOAL)
    ballots = RulesJudge().ask(case, [0, 1])()
    assert [ballot.number for ballot in ballots] == [0, 1] and ballots[0].vote == ballots[1].vote
    assert ballots[0].vote is not None
    return ballots[0].vote


@yaml_cases
def test_only_what_is_proven_is_a_success(screens: list[Any], valid: bool, success: bool) -> None:
    found = vote("The lamp is on.", *screens)
    assert (found.valid, found.success) == (valid, success)


def test_reasons_name_rounds() -> None:
    found = vote("The lamp is on.", ELSEWHERE, ON)
    assert found.rounds == (2,) and found.words == "lamp oven: on is True: shown"
    said = "The message admits a failure.\nlamp oven: on is True: not shown"
    assert vote("Sorry.", ("lamp/oven", "colour", "red")).words == said


@yaml_cases
def test_an_admitted_failure_is_one_whatever_is_shown(message: str) -> None:
    assert admits_failure(message), message
    assert (found := vote(message, ON)).valid and not found.success


@yaml_cases
def test_other_messages_admit_nothing(message: str) -> None:
    """Nor do names and quotations, nor what is denied."""
    assert not admits_failure(message), message


def test_a_case_without_a_goal_is_refused() -> None:
    with pytest.raises(ValueError, match="phone/1 has no goal"):
        RulesJudge().ask(Case("phone/1", "", Submission("", []), 0), [0])
