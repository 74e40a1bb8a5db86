"""Votes of which some are turned into their opposite: a judge that errs as often as it is told to."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfverify.agents.cases import Awaited, Ballot, Case, Judge
from selfverify.agents.exhibits import Vote
from selfverify.agents.fenced import render


class FlippedVotes(Judge):
    """Flips each vote of another judge with the same probability, apart from all others.

    Success becomes failure, with evidence that is still relevant; failure becomes success, which makes the
    evidence relevant. Which votes are flipped depends on the case, as a judge reads it, and on the vote's
    number: the same case is always judged the same, as it would be from a cache.

    Args:
        judge: Who votes.
        share: How many of all votes are flipped, from 0 to 1.
    """

    def __init__(self, judge: Judge, share: float) -> None:
        self.judge, self.share = judge, share

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """See `Judge`."""
        coming = self.judge.ask(case, numbers)
        key = zlib.crc32(f"{case.name}\n{render(case).text}".encode())
        return lambda: [self._passed_on(ballot, key) for ballot in coming()]

    def set_policy(self, policy: object) -> None:
        """See `Judge`."""
        self.judge.set_policy(policy)

    def set_cache_folder(self, folder: Path) -> None:
        """See `Judge`."""
        self.judge.set_cache_folder(folder)

    def counters(self) -> dict[str, float]:
        """See `Judge`."""
        return self.judge.counters()

    def _passed_on(self, ballot: Ballot, key: int) -> Ballot:
        if ballot.vote is None or np.random.default_rng([key, ballot.number]).random() >= self.share:
            return ballot
        vote = Vote(True, not ballot.vote.success, ballot.vote.words, ballot.vote.rounds, ballot.vote.about)
        return replace(ballot, vote=vote, about={**ballot.about, "flipped": True})
