"""The composite reward of a self-verifying agent (SmartSnap Eq. 3), and figures of its conversations.

SR, Sub-SR, RRR and ROR are AndroidLab's (SmartSnap's Table 2), computed as its code does, with what is odd
about it: docs/metrics.md lists that. The others need a task's goal: they compare evidence and judges with
the ground truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import Field

from selfverify.agents.evidence import Exhibit
from selfverify.agents.goals import Goal, Truth, minimal_evidence
from selfverify.agents.judges.case import Judgement
from selfverify.core.config import Config
from selfverify.tasks.base import EVERY, Metric


class RewardConfig(Config):
    """The sizes of the reward's components."""

    relevant: float = Field(0.2, ge=0)
    """R_validity of evidence that has to do with the task (§4.2; §3.4 says 0.5)."""

    invalid: float = Field(0.0, le=0)
    """R_validity of evidence that has not. §4.2 has 0, §3.4 names a penalty, the authors' release takes
    -1."""

    success: float = Field(0.8, ge=0)
    """R_complete of a task that is proven to be done (§4.2)."""

    format_error: float = Field(-1.0, le=0)
    """R_format where no proper submission was made; nothing is added to it (§4.2)."""

    conciseness: float = Field(0.05, ge=0)
    """Lambda: what each chosen exhibit costs (§3.4 gives no number; the release charges 0.1 beyond three)."""

    free_evidence: int = Field(0, ge=0)
    """Exhibits that cost nothing (the release: 3)."""


@dataclass(frozen=True, slots=True)
class Components:
    """The four terms of Eq. 3.

    Args:
        format: R_format: 0, or the penalty for a conversation without a proper submission.
        validity: R_validity: whether the evidence has to do with the task.
        complete: R_complete: whether it proves that the task is done.
        concise: R_concise: the price of the exhibits that were chosen, 0 or less.
    """

    format: float = 0.0
    validity: float = 0.0
    complete: float = 0.0
    concise: float = 0.0

    @property
    def total(self) -> float:
        """R, their sum."""
        return self.format + self.validity + self.complete + self.concise


def composite(valid: bool, success: bool, evidence: int, config: RewardConfig) -> Components:
    """The reward of a proper submission (Eq. 3 with §4.2's numbers): R_validity + R_complete + R_concise.

    R_concise is -conciseness * max(|E| - free_evidence, 0). With ``free_evidence=0`` that is the paper's
    -lambda * |E|, for whose lambda it gives no number; with 0.1 and 3 it is the release's.

    Args:
        valid: Whether the judges found the evidence relevant, also where it proves a failure.
        success: Whether they found that it proves the task done.
        evidence: |E|, the number of exhibits that the agent has chosen.
        config: The sizes.

    Raises:
        ValueError: Evidence that is not relevant cannot prove success.
    """
    if success and not valid:
        raise ValueError("evidence that is not relevant cannot prove success")
    charged = max(evidence - config.free_evidence, 0)
    return Components(
        validity=config.relevant if valid else config.invalid,
        complete=config.success if success else 0.0,
        concise=-config.conciseness * charged if charged else 0.0,
    )


SIMILAR = 0.999
"""Two screenshots that agree in more of their values than this count as the same (AndroidLab)."""
LEAST_SR = 0.05
"""RRR is not given below this success rate: it would be a mean over next to nothing."""
LARGEST_SET = 4
"""Rounds of the largest smallest sufficient set that is looked for."""

METRICS = (
    Metric("SR", "truth"),
    Metric("SR-all", "truth", EVERY),
    Metric("Sub-SR", "sub_goals"),
    Metric("RRR", "rrr", needs=("truth", LEAST_SR)),
    Metric("judged-RRR", "judged_rrr", needs=("judged_success", LEAST_SR)),
    Metric("ROR", "ror"),
    Metric("ROR-xml", "ror_xml"),
    Metric("judged-SR", "judged_success"),
    Metric("judge-precision", "true_positive", "judged_positive"),
    Metric("judge-recall", "true_positive", "judged_true"),
    Metric("judge-false-positives", "false_positive", "judged_untrue"),
    Metric("evidence", "evidence"),
    Metric("completeness", "sufficient"),
    Metric("conciseness", "excess"),
    Metric("creativity", "evidence_turns"),
    Metric("altered-quotations", "altered_quotations", "quotations"),
)
"""The figures by name. docs/metrics.md explains each."""


class Outcome(StrEnum):
    """The ways in which a conversation ends."""

    SUBMITTED = "submitted"
    """The agent, with proper evidence: judges decide."""
    IMPROPER = "improper"
    """Nothing proper was handed in, maybe for want of turns or tokens: a format error; no judge is asked."""
    BROKEN_OFF = "broken_off"
    """The environment or the model server was lost: nothing can be said of it."""


@dataclass(slots=True)
class AgentRecord:
    """The record of a conversation.

    Args:
        outcome: How it ended; None while it goes on.
        why: Why nothing proper was handed in, or what cut it off.
        turn: The last turn of the policy, from 0; -1 before the first.
        turns: The record of each turn, as plain JSON: the ``call`` that was read, the ``round`` that the
            environment counted, and the ``error`` with which it was refused; each where there is one.
        message: The final message.
        chosen: The exhibits that the agent has handed in.
        seen: The exhibits that the agent was shown, by which it may prove its work.
        history: All exhibits of the session.
        refused: Calls that were refused.
        judgement: The judges' verdict; None where they were not asked.
        truth: The ground truth at the end; None where that is not known.
        reached: The round after which an operation was done for the first time; None where it never was, or
            where that was not looked at.
    """

    outcome: Outcome | None = None
    why: str = ""
    turn: int = -1
    turns: dict[int, dict[str, Any]] = field(default_factory=dict)
    message: str = ""
    chosen: list[Exhibit] = field(default_factory=list)
    seen: list[Exhibit] = field(default_factory=list)
    history: list[Exhibit] = field(default_factory=list)
    refused: int = 0
    judgement: Judgement | None = None
    truth: Truth | None = None
    reached: int | None = None


def measure(
    record: AgentRecord, goal: Goal | None = None, steps: int | None = None, looking: Collection[str] = ()
) -> dict[str, float]:
    """Return the parts of one conversation, of which `METRICS` are made; what is not known has no part.

    Args:
        record: The record of the conversation.
        goal: The task's goal, if known.
        steps: How many calls that act the task takes, if known.
        looking: Tools that show the screen and do nothing; they count in no figure of steps.
    """
    return _progress(record, steps, looking) | _evidence(record, goal) | _judging(record)


def summarise_parts(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures (`METRICS`) over many conversations; those of which nothing is known are left out."""
    found = {}
    for metric in METRICS:
        counted = [row for row in rows if metric.part in row]
        whole = float(len(rows if metric.over == EVERY else counted))
        if metric.over not in (None, EVERY):
            whole = sum(row[metric.over] for row in counted)
        if metric.needs is not None:
            name, least = metric.needs
            having = [row[name] for row in rows if name in row]
            whole *= bool(having) and sum(having) / len(having) >= least
        if counted and whole > 0:
            found[metric.name] = sum(row[metric.part] for row in counted) / whole
    return found


def reasonable_share(same: Sequence[bool]) -> float:
    """AndroidLab's ROR of one conversation.

    AndroidLab takes the screens before each operation, the last of which is the end, drops the last one and
    compares neighbours. So the effect of the last operation is never looked at, and a conversation of two
    screens or fewer has no unreasonable operation.

    Args:
        same: For each operation whether the screen after it is the one before it, in order.
    """
    compared = same[:-1]
    return 1.0 - sum(compared) / len(compared) if compared else 1.0


def same_pixels(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two screenshots count as the same: more than `SIMILAR` of the values not white in both agree.

    Two white screens are the same; AndroidLab divides by zero there.

    Args:
        one: uint8 ``[H, W, 3]``.
        other: uint8; of another size it is another screen.
    """
    if one.shape != other.shape:
        return False
    counted = (one != 255) | (other != 255)
    total = int(counted.sum())
    return total == 0 or int(((one == other) & counted).sum()) / total > SIMILAR


def _progress(record: AgentRecord, steps: int | None, looking: Collection[str]) -> dict[str, float]:
    """How far the agent came, and how."""
    found: dict[str, float] = {}
    acting = [e for e in record.history if e.call is not None and e.call.name not in looking]
    if record.truth is not None:
        reached = record.truth.subgoals
        found["truth"] = float(record.truth.complete)
        if reached:
            found["sub_goals"] = 1.0 if record.truth.complete else sum(reached) / len(reached)
    done = record.judgement is not None and record.judgement.success is True
    name, done = ("judged_rrr", done) if record.truth is None else ("rrr", record.truth.complete)
    if done and steps is not None and acting:
        found[name] = steps / len(acting)
    if record.reached is not None:
        found["evidence_turns"] = float(sum(e.seen.round > record.reached for e in acting))
    # A reset need not show anything.
    screens = [exhibit for exhibit in record.history if exhibit.seen.images or exhibit.seen.text]
    if screens:
        found |= _reasonable(screens, looking)
    return found


def _reasonable(screens: Sequence[Exhibit], looking: Collection[str]) -> dict[str, float]:
    pairs = [
        (before.seen, after.seen)
        for before, after in itertools.pairwise(screens)
        if after.call is None or after.call.name not in looking
    ]
    if all(exhibit.seen.images for exhibit in screens):
        pixels = [
            same_pixels(np.asarray(a.images[0].convert("RGB")), np.asarray(b.images[0].convert("RGB")))
            for a, b in pairs
        ]
        return {"ror": reasonable_share(pixels)}
    return {"ror_xml": reasonable_share([a.text == b.text for a, b in pairs])}


def _evidence(record: AgentRecord, goal: Goal | None) -> dict[str, float]:
    """How good the evidence is, against a smallest set that would have been enough."""
    if record.outcome != Outcome.SUBMITTED:
        return {}
    found = {"evidence": float(len(record.chosen))}
    if goal is None or not record.chosen:
        return found
    smallest = minimal_evidence(record.seen, goal, record.message, LARGEST_SET)
    if smallest is not None:
        enough = goal.shown(record.chosen, record.message).verdict is True
        found["sufficient"] = float(enough)
        if enough:
            found["excess"] = len(record.chosen) / len(smallest)
    return found


def _judging(record: AgentRecord) -> dict[str, float]:
    """Return the judges' verdict, its cost, and whether it was true."""
    judgement = record.judgement
    if judgement is None:
        return {}
    votes = [ballot.vote for ballot in judgement.ballots if ballot.vote is not None]
    # No figure may hang on the clock or on a cache: a resumed run's are those of an unbroken one.
    found = {
        "votes_missing": float(len(judgement.ballots) - len(votes)),
        "undecided": float(not judgement.decided),
        "judge_tokens": float(judgement.tokens),
    }
    if any("quotations" in vote.about for vote in votes):
        for name in ("quotations", "altered_quotations"):
            found[name] = float(sum(vote.about.get(name, 0) for vote in votes))
    if judgement.success is None:
        return found
    found["judged_success"] = float(judgement.success)
    if record.truth is not None:
        judged, true = judgement.success, record.truth.complete
        found |= {
            "judged_positive": float(judged),
            "judged_true": float(true),
            "judged_untrue": float(not true),
            "true_positive": float(judged and true),
            "false_positive": float(judged and not true),
        }
    return found
