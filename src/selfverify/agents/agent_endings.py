"""How an agent's conversation came to its end, and what it is worth."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from selfverify.agents.agent_figures import Record, measure
from selfverify.agents.cases import Judgement
from selfverify.agents.exhibits import Exhibit
from selfverify.agents.goals import Goal, Truth
from selfverify.agents.reward import Components, RewardConfig, composite, format_error
from selfverify.core.episode import EpisodeResult
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.tasks.answering import Verdict, answer_rewards
from selfverify.tasks.tool_episode import TOOL_CALLS, TOOL_ERRORS


class Outcome(StrEnum):
    """Who ended a conversation, and how."""

    SUBMITTED = "submitted"
    """The agent, with proper evidence: judges decide."""
    IMPROPER = "improper"
    """Nothing proper was handed in: a format error, and no judge is asked."""
    CUT_OFF = "cut_off"
    """A turn was cut off, or the context is full: nothing can be said of it."""


@dataclass(slots=True)
class AgentRecord:
    """What came of a conversation.

    Args:
        outcome: How it ended; None while it goes on.
        why: Why nothing proper was handed in, or what cut it off.
        turn: The last turn of the policy, from 0; -1 before the first.
        turns: What became of each turn, as plain JSON: the ``call`` that was read, the ``round`` that the
            environment counted, and the ``error`` with which it was refused; each where there is one.
        message: The final message.
        chosen: The exhibits that the agent has handed in.
        seen: The exhibits that the agent was shown, by which it may prove its work.
        history: All exhibits of the session.
        refused: Calls that were refused.
        judgement: What the judges say; None where they were not asked.
        truth: The ground truth at the end; None where nobody knows.
        reached: The round after which an operation was done for the first time; None where it never was, or
            where nobody looked.
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


def ending_of_agent(
    problem: Problem,
    worked: AgentRecord,
    config: RewardConfig,
    goal: Goal | None,
    looking: Collection[str] = frozenset(),
) -> EpisodeResult:
    """A conversation's rewards (Eq. 3) and figures, with every vote and its words.

    ``answer`` is the whole reward R. ``correct`` is the ground truth, or where nobody knows it what the
    judges say. Everything else in the rewards is explained in docs/smartsnap.md. ``turns`` has what became of
    each turn (`AgentRecord.turns`), and of the last one what was handed in and how it was judged, so that the
    rollout log keeps the votes and a page can show them.

    Args:
        problem: What was asked; ``meta["steps"]`` is how many calls that act the task takes, if known.
        worked: What came of the conversation.
        config: The reward's components.
        goal: What had to be so, if known.
        looking: Tools that show the screen and do nothing.
    """
    judgement, lost, components = worked.judgement, "", Components()
    if worked.outcome == Outcome.IMPROPER:
        components = format_error(config)
    elif worked.outcome == Outcome.CUT_OFF:
        lost = worked.why
    elif judgement is None or judgement.valid is None or judgement.success is None:
        lost = f"no verdict: {judgement.why if judgement else 'nobody was asked'}"
    else:
        components = composite(judgement.valid, judgement.success, len(worked.chosen), config)
    succeeded = judgement is not None and judgement.success is True
    correct = worked.truth.complete if worked.truth is not None else succeeded
    parts = measure(
        Record(
            seen=worked.seen,
            history=worked.history,
            message=worked.message,
            chosen=worked.chosen if worked.outcome == Outcome.SUBMITTED else None,
            judgement=judgement,
            truth=worked.truth,
            reached=worked.reached,
            goal=goal,
            steps=problem.meta.get("steps"),
            looking=looking,
        )
    )
    if not lost:
        parts |= {
            "format_error": components.format,
            "validity": components.validity,
            "complete": components.complete,
            "concise": components.concise,
        }
    judged = Verdict(components.total, correct, worked.message or None, unjudged=lost, parts=parts)
    calls = sum(exhibit.call is not None and not exhibit.seen.error for exhibit in worked.history)
    rewards = answer_rewards(Tagged(answer_ok=worked.outcome == Outcome.SUBMITTED), judged)
    rewards |= {TOOL_CALLS: float(calls), TOOL_ERRORS: float(worked.refused)}
    said = {
        "outcome": str(worked.outcome),
        "why": worked.why,
        "message": worked.message,
        "evidence": [exhibit.seen.round for exhibit in worked.chosen],
        "judgement": None if judgement is None else judgement.as_json(),
        "reward": None if lost else asdict(components),
        "truth": None if worked.truth is None else asdict(worked.truth),
    }
    turns = [worked.turns.get(turn, {}) for turn in range(worked.turn + 1)]
    if turns:
        turns[-1] = turns[-1] | said
    return EpisodeResult(rewards, parsed=judged, turns=turns, lost=bool(lost))
