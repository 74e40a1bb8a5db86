"""Exhibits: what an agent hands in as proof of what it did (SmartSnap §3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.core.episode import Call, StepResult


@dataclass(frozen=True, slots=True)
class Exhibit:
    """An atomic fact of a session: a call and what the environment showed right after it.

    The paper's (a_e, s_{e+1}); the round of ``seen`` is its number, by which the agent names it.

    Args:
        call: What was called; None for what the reset showed.
        seen: The observation as the environment made it.
    """

    call: Call | None
    seen: StepResult


@dataclass(frozen=True, slots=True)
class Submission:
    """What an agent says at the end.

    Args:
        message: The final message, to a query the answer.
        evidence: The exhibits that it has chosen, in order of their rounds.
        history: All exhibits of the session, for judges that read more than what was chosen.
    """

    message: str
    evidence: Sequence[Exhibit]
    history: Sequence[Exhibit] = ()


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's opinion of a submission.

    Args:
        valid: Whether the evidence has to do with the task; evidence that proves a failure is valid.
        success: Whether the evidence proves that the task is done; never without ``valid``.
        words: The judge's reasons.
        rounds: The rounds to which the reasons refer.
        about: What the vote cost and how it came about, as plain JSON.
    """

    valid: bool
    success: bool
    words: str = ""
    rounds: tuple[int, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
