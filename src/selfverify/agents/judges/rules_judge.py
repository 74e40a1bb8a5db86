"""The rules of a task as judge: the ground truth, restricted to what the evidence shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfverify.agents.cases import Awaited, Ballot, Case, Judge
from selfverify.agents.exhibits import Vote

_ADMISSION = re.compile(
    r"\b(?:could(?:n't| not)|can(?:'t| ?not)|(?:am|was|were) not able|unable|impossible|not possible|failed|"
    r"did(?:n't| not) (?:manage|succeed|work|find)|ga?i?ve up|not (?:been )?(?:done|completed|finished)|"
    r"no way to|sorry)\b",
    re.IGNORECASE,
)


def admits_failure(message: str) -> bool:
    """Whether a final message says that the task was not done: by its words, in English."""
    return _ADMISSION.search(message.replace("’", "'")) is not None


class RulesJudge(Judge):
    """Votes by a task's goal: never wrong about what it is shown, always the same, without a model.

    Evidence is relevant where it shows anything of what the goal is about. What it does not show is not
    assumed: only a goal of which every part is shown to be reached is a success. An admitted failure is one,
    whatever the evidence shows.
    """

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """See `Judge`.

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
