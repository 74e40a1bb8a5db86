"""A jury, which asks one judge for several votes, and the judges that need no model."""

from __future__ import annotations

import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from selfverify.agents.evidence import Vote
from selfverify.agents.judges.case import Awaited, Ballot, Case, Judge, Judgement, render
from selfverify.agents.judges.config import Flips, JuryConfig
from selfverify.core.events import note

logger = logging.getLogger(__name__)

LOOKED_AT = 100
"""Votes after which the share of missing ones is looked at, again and again."""
MOST_MISSING = 0.05
"""The share of missing votes above which that is warned of."""

_NAMES = {True: "successes", False: "failures", None: "undecided"}


class Jury:
    """Asks one judge several times about one submission (§4.2: three times, two of three decide).

    A share of the votes may be flipped, so that a judge errs as often as it is told to: success becomes
    failure, with evidence that is still relevant; failure becomes success, which makes the evidence relevant.
    Which votes are flipped depends on the case, as a judge reads it: the same case is always judged the same,
    as it would be from a cache. It depends on the vote's number, too, so that votes err apart and a jury
    outvotes them; with ``claims`` it does not, and no jury helps.

    Args:
        judge: The judge.
        config: How many votes are asked for, and how many decide.
        flipped: How many of the votes that can be flipped are, from 0 to 1.
        flips: Which can be: see `selfverify.agents.judges.make_judge.JudgeConfig`.
    """

    def __init__(
        self, judge: Judge, config: JuryConfig | None = None, flipped: float = 0.0, flips: Flips = "votes"
    ) -> None:
        self.judge, self.config = judge, config or JuryConfig()
        self.flipped, self.flips = flipped, flips
        self._asked: Counter[bool | None] = Counter()
        self._missing: Counter[bool | None] = Counter()

    def ask(self, case: Case) -> Callable[[], Judgement]:
        """Begin to judge a submission; the result waits for the votes and says what they come to."""
        c = self.config
        first = c.deciding if c.stop_early else c.votes
        coming = self.judge.ask(case, range(first))

        def wait() -> Judgement:
            ballots = self._flipped(case, coming())
            verdict = tally(ballots, c.deciding)
            if not verdict.decided and first < c.votes:
                ballots += self._flipped(case, self.judge.ask(case, range(first, c.votes))())
                verdict = tally(ballots, c.deciding)
            if not verdict.decided:
                message = f"problem {case.name}: no verdict: {verdict.why}"
                note(logger, "no_verdict", message, problem=case.name, reason=verdict.why)
            self._count(case, verdict)
            return verdict

        return wait

    def counters(self) -> dict[str, float]:
        """The judge's, and the share of missing votes by verdict; the two verdicts should lose alike."""
        shares = {f"judge/missing_of_{_NAMES[v]}": self._missing[v] / n for v, n in self._asked.items()}
        return self.judge.counters() | shares

    def _flipped(self, case: Case, ballots: list[Ballot]) -> list[Ballot]:
        alike = self.flips == "claims"
        if not self.flipped or (alike and not claims_success(case.submission.message)):
            return ballots
        key, found = zlib.crc32(f"{case.name}\n{render(case).text}".encode()), list[Ballot]()
        for ballot in ballots:
            drawn = np.random.default_rng([key] if alike else [key, ballot.number]).random()
            vote = ballot.vote
            if vote is not None and drawn < self.flipped and (self.flips == "votes" or not vote.success):
                turned = replace(vote, valid=True, success=not vote.success)
                ballot = replace(ballot, vote=turned, about={**ballot.about, "flipped": True})
            found.append(ballot)
        return found

    def _count(self, case: Case, verdict: Judgement) -> None:
        kind = verdict.success if verdict.decided else None
        self._asked[kind] += len(verdict.ballots)
        for ballot in verdict.ballots:
            if ballot.vote is None:
                self._missing[kind] += 1
                number, why = ballot.number, ballot.missing
                message = f"problem {case.name}: vote {number} is missing: {why}"
                note(logger, "vote_missing", message, problem=case.name, vote=number, reason=why)
        asked, missing = self._asked.total(), self._missing.total()
        due = asked // LOOKED_AT > (asked - len(verdict.ballots)) // LOOKED_AT
        if due and missing > MOST_MISSING * asked:
            shares = ", ".join(f"{_NAMES[v]} {self._missing[v] / n:.1%}" for v, n in self._asked.items())
            text = "%d of %d votes are missing (%s); events vote_missing say why"
            logger.warning(text, missing, asked, shares)


def tally(ballots: Sequence[Ballot], deciding: int) -> Judgement:
    """Return the outcome of votes: what ``deciding`` of them say holds, of validity and of success apart.

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


_ADMISSION = re.compile(
    r"\b(?:could(?:n't| not)|can(?:'t| ?not)|unable|impossible|failed|unsuccessful|g[ai]ven? up|no way to|"
    r"sorry|ran out of (?:steps|turns|time))\b|(?:\bnot|n't) (?:been )?(?:able|possible|manage|succeed|work|"
    r"find|know|done|completed?|finish(?:ed)?|do (?:it|this))\b",
    re.IGNORECASE,
)


# Names are no admissions: what stands in quotation marks, capitalised words inside a sentence, songs' titles.
_NAMED = re.compile(
    r"\"[^\"\n]*\"|“[^”\n]*”|`[^`\n]*`|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w))*'(?!\w)"
    r"|(?<=[a-z,] )[A-Z][a-z]+(?:(?:[:&]| -)? [A-Z][a-z]+)*|\A[A-Z][a-z]+(?= (?:is|was|by)\b)"
)
_DENIED = re.compile(
    r"\b(?:nothing|none|never|no \w+|not|\w+n't)(?: (?:has|have|had|was|were|is|ever|yet))? "
    r"(?:failed|impossible)\b|\b(?:the|a|every|each|any) failed (?!attempt|try)(?=\w)",
    re.IGNORECASE,
)
"""Failures that were none, or that things of the task are called, such as a failed download."""


def admits_failure(message: str) -> bool:
    """Whether a final message says that the task was not done: by its words, in English."""
    said = _NAMED.sub(" ", message.replace("’", "'").replace("‘", "'"))
    return _ADMISSION.search(_DENIED.sub(" ", said)) is not None


_CLAIM = re.compile(r"\b(?:done|finished|completed?|success(?:ful(?:ly)?)?|succeeded)\b", re.IGNORECASE)


def claims_success(message: str) -> bool:
    """Whether a final message says, in English, that the task was done; an answer alone does not."""
    return _CLAIM.search(message) is not None and not admits_failure(message)


class RulesJudge(Judge):
    """Votes by a task's goal: never wrong about what it is shown, always the same, without a model.

    Evidence is relevant where it shows anything of what the goal is about. What it does not show is not
    assumed: only a goal of which every part is shown to be reached is a success. An admitted failure is one
        with any evidence.
    """

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """Begin to judge a case.

        Raises:
            ValueError: The case has no goal.
        """
        if case.goal is None:
            raise ValueError(f"problem {case.name} has no goal to judge by")
        message, evidence = case.submission.message, case.submission.evidence
        proof = case.goal.shown(evidence, message)
        relevant = any(case.goal.relevant(exhibit) for exhibit in evidence)
        admitted = admits_failure(message)
        words = ["The message admits a failure."] * admitted
        words += [f"{f.about}: {_SHOWN[f.verdict]}" for f in proof.findings]
        rounds = sorted({number for finding in proof.findings for number in finding.rounds})
        success = relevant and proof.verdict is True and not admitted
        vote = Vote(relevant, success, "\n".join(words), tuple(rounds))
        return lambda: [Ballot(number, vote) for number in numbers]


_SHOWN = {True: "shown", False: "shown to be otherwise", None: "not shown"}


class StateJudge(Judge):
    """Votes by the ground truth, and reads no evidence.

    A script that is written for each task finds it in the environment's state (SmartSnap Fig. 2a).
    It has no opinion of evidence: a task that is done counts as proven, and one that is not earns nothing for
    evidence that has to do with it. Where the state is not known there is no vote.
    """

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        if case.truth is None:
            missing = "outage: the environment's state is not known"
            return lambda: [Ballot(number, None, missing, {"outage": True}) for number in numbers]
        done = case.truth.complete
        vote = Vote(done, done, "The task is done." if done else "The task is not done.")
        return lambda: [Ballot(number, vote) for number in numbers]
