"""Several votes on one submission, and what they come to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from selfverify.agents.cases import Ballot, Case, Judge, Judgement, JudgePanel, Pending
from selfverify.agents.judges.judge_settings import JuryConfig
from selfverify.core.events import note

logger = logging.getLogger(__name__)


class Jury(JudgePanel):
    """Asks one judge several times (§4.2: three times, two of three decide).

    Args:
        judge: Who votes.
        config: How many votes are asked for, and how many decide.
    """

    def __init__(self, judge: Judge, config: JuryConfig | None = None) -> None:
        self.judge, self.config = judge, config or JuryConfig()

    def ask(self, case: Case) -> Pending:
        """See `JudgePanel`."""
        c = self.config
        first = c.deciding if c.stop_early else c.votes
        coming = self.judge.ask(case, range(first))

        def wait() -> Judgement:
            ballots = coming()
            verdict = tally(ballots, c.deciding)
            if not verdict.decided and first < c.votes:
                ballots = [*ballots, *self.judge.ask(case, range(first, c.votes))()]
                verdict = tally(ballots, c.deciding)
            if not verdict.decided:
                message = f"problem {case.name}: no verdict: {verdict.why}"
                note(logger, "no_verdict", message, problem=case.name, reason=verdict.why)
            return verdict

        return wait


def tally(ballots: Sequence[Ballot], deciding: int) -> Judgement:
    """What votes come to: what ``deciding`` of them say holds, of validity and of success apart.

    Ballots without a vote count for neither side. Where either of the two is not decided there is no verdict.

    Args:
        ballots: All requests for votes.
        deciding: Equal votes that decide, more than half of the ballots.
    """
    votes = [ballot.vote for ballot in ballots if ballot.vote is not None]

    def decided(ayes: int) -> bool | None:
        if ayes >= deciding:
            return True
        return False if len(votes) - ayes >= deciding else None

    valid, success = decided(sum(v.valid for v in votes)), decided(sum(v.success for v in votes))
    missing = [ballot.missing for ballot in ballots if ballot.vote is None]
    why = ""
    if success is None or valid is None:
        about = "success" if success is None else "relevance"
        why = f"{len(votes)} of {len(ballots)} votes, and no {deciding} agree on {about}"
        why += f" ({missing[0]})" if missing else ""
    return Judgement(valid, success, tuple(ballots), why)
