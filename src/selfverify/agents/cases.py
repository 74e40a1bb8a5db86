"""What judges are asked, what they say, and what comes of several votes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfverify.agents.exhibits import Submission, Vote
from selfverify.agents.goals import Goal, Truth


@dataclass(frozen=True, slots=True)
class Case:
    """A submission with what it is judged by.

    Args:
        name: The problem's id, for logs.
        instruction: What the agent was asked to do.
        submission: What judges read: the message, and the evidence that they are shown.
        rounds: How many calls the session has answered.
        goal: What has to be so, for judges by rules; other judges never see it. None where nobody knows.
        truth: The ground truth at the end, for the judge that reads the state; None where nobody knows.
    """

    name: str
    instruction: str
    submission: Submission
    rounds: int
    goal: Goal | None = None
    truth: Truth | None = None


@dataclass(frozen=True, slots=True)
class Ballot:
    """One request for a vote.

    Args:
        number: Which of a case's votes this is, from 0.
        vote: What was said; None where nothing came back that counts.
        missing: Why there is no vote; empty where there is one.
        about: What the request cost and how it came about, as plain JSON.
    """

    number: int
    vote: Vote | None = None
    missing: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What several votes come to.

    Args:
        valid: Whether the evidence has to do with the task; None where the votes do not decide it.
        success: Whether the evidence proves that the task is done; None where the votes do not decide it.
        ballots: All requests for votes, in order of their numbers.
        why: Why nothing is decided; empty where both are.
    """

    valid: bool | None
    success: bool | None
    ballots: Sequence[Ballot] = ()
    why: str = ""

    @property
    def decided(self) -> bool:
        """Whether there is a verdict. Without one a trajectory takes no part in training."""
        return not self.why

    @property
    def tokens(self) -> int | None:
        """Tokens that the votes cost, of the prompt and of the answer; None where nobody counts them."""
        counted = [
            ballot.about[kind]
            for ballot in self.ballots
            for kind in ("prompt_tokens", "completion_tokens")
            if kind in ballot.about
        ]
        return sum(counted) if counted else None

    def as_json(self) -> dict[str, Any]:
        """The verdict and every vote with its words, as plain JSON."""
        ballots = [
            {
                "number": ballot.number,
                "vote": None if ballot.vote is None else asdict(ballot.vote),
                "missing": ballot.missing,
                "about": dict(ballot.about),
            }
            for ballot in self.ballots
        ]
        return {"valid": self.valid, "success": self.success, "why": self.why, "ballots": ballots}


Awaited = Callable[[], list[Ballot]]
"""Waits for votes that were asked for, and returns one ballot for each."""


class Judge(ABC):
    """Votes on submissions. It may be asked by many threads at once."""

    @abstractmethod
    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """Ask for the votes with these numbers.

        It returns at once; the votes come while conversations go on. A judge that fails gives ballots without
        votes and raises nothing.
        """

    def set_policy(self, policy: object) -> None:
        """Learn which `selfverify.policy.policy.Policy` answers, for a judge that lets it vote.

        It is called before votes are waited for. By default nothing happens.
        """

    def set_cache_folder(self, folder: Path) -> None:
        """Learn where to keep answers, so that nobody is asked the same twice; see
        `Task.set_cache_folder`."""

    def counters(self) -> dict[str, float]:
        """What asking has cost so far, by name, for timing.jsonl."""
        return {}


Pending = Callable[[], Judgement]
"""Waits for the votes on a submission, and says what they come to."""


class JudgePanel(ABC):
    """Turns a judge's votes into verdicts."""

    @abstractmethod
    def ask(self, case: Case) -> Pending:
        """Begin to judge a submission; it returns at once."""
