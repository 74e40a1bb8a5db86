"""The environment's state as judge: what a script finds that is written for each task (SmartSnap Fig. 2a)."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.agents.cases import Awaited, Ballot, Case, Judge
from selfverify.agents.exhibits import Vote


class StateJudge(Judge):
    """Votes by the ground truth, and reads no evidence.

    It has no opinion of evidence: a task that is done counts as proven, and one that is not earns nothing for
    evidence that has to do with it. Where the state is not known there is no vote.
    """

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """See `Judge`."""
        if case.truth is None:
            missing = "outage: the environment's state is not known"
            return lambda: [Ballot(number, None, missing, {"outage": True}) for number in numbers]
        done = case.truth.complete
        vote = Vote(done, done, "The task is done." if done else "The task is not done.")
        return lambda: [Ballot(number, vote) for number in numbers]
