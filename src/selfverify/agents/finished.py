"""Sessions that are over: they can be judged as often as one likes, by whatever a judge is to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.agents.cases import Case
from selfverify.agents.evidence import EvidenceConfig, Source, shown_to_judge
from selfverify.agents.exhibits import Exhibit, Submission
from selfverify.agents.goals import Goal, Truth


@dataclass(frozen=True, slots=True)
class Finished:
    """A session in which something proper was handed in.

    Args:
        name: The problem's id, for logs.
        instruction: What the agent was asked to do.
        goal: What has to be so.
        truth: The ground truth at the end.
        message: The final message.
        chosen: The exhibits that the agent has handed in.
        history: All exhibits of the session.
    """

    name: str
    instruction: str
    goal: Goal
    truth: Truth
    message: str
    chosen: Sequence[Exhibit]
    history: Sequence[Exhibit]

    def case(self, read: Source, last_screen: bool = False) -> Case:
        """What a judge is asked who reads this.

        Args:
            read: What it reads.
            last_screen: Whether it is shown the last screen behind the chosen exhibits, too.
        """
        config = EvidenceConfig(judged=read, last_screen=last_screen)
        shown = shown_to_judge(self.chosen, self.history, config)
        rounds = self.history[-1].seen.round if self.history else 0
        submission = Submission(self.message, shown, self.history)
        return Case(self.name, self.instruction, submission, rounds, self.goal, self.truth)
