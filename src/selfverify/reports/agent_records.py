"""What the store keeps of an agent's conversation, as `agents.agent_endings.ending_of_agent` wrote it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from selfverify.core.episode import Call
from selfverify.evaluation.samples import StoredSample


class CallRecord(BaseModel):
    """A call as it was read."""

    name: str
    arguments: dict[str, Any]


class TurnRecord(BaseModel):
    """A turn: the call, the round that it made, and why it was refused."""

    call: CallRecord | None = None
    round: int | None = None
    error: str = ""


class VoteRecord(BaseModel):
    """A vote with its words."""

    valid: bool
    success: bool
    words: str = ""


class BallotRecord(BaseModel):
    """A request for a vote; without one there is a reason."""

    vote: VoteRecord | None
    missing: str = ""


class JudgementRecord(BaseModel):
    """What the votes come to."""

    valid: bool | None
    success: bool | None
    why: str = ""
    ballots: list[BallotRecord] = []


class TruthRecord(BaseModel):
    """The ground truth."""

    complete: bool
    subgoals: list[bool] = []


class EndRecord(TurnRecord):
    """The last turn: what was handed in, and what it is worth."""

    outcome: str
    why: str = ""
    message: str = ""
    evidence: list[int]
    judgement: JudgementRecord | None
    reward: dict[str, float] | None = None
    truth: TruthRecord | None = None


def end_of(sample: StoredSample) -> EndRecord | None:
    """How an agent's conversation ended; None for a sample that is none."""
    own = [step for step in sample.steps if step.author == "policy"]
    if not own or own[-1].record is None:
        return None
    try:
        return EndRecord.model_validate(own[-1].record)
    except ValidationError:
        return None


def turns_of(sample: StoredSample) -> dict[int, TurnRecord]:
    """What became of each turn, by its number."""
    found = {}
    for step in sample.steps:
        if step.author == "policy":
            try:
                found[step.turn] = TurnRecord.model_validate(step.record or {})
            except ValidationError:
                found[step.turn] = TurnRecord()
    return found


def calls_of(turns: dict[int, TurnRecord]) -> list[Call]:
    """The calls that the environment has answered, in their order."""
    return [
        Call(turn.call.name, turn.call.arguments)
        for _, turn in sorted(turns.items())
        if turn.call is not None and turn.round is not None
    ]
