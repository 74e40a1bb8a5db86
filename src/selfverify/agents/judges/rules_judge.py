"""The rules of a task as judge: the ground truth, restricted to what the evidence shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfverify.agents.cases import Awaited, Ballot, Case, Juror
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


class RulesJudge(Juror):
    """Votes by `Case.weigh`: never wrong about what it is shown, always the same, without a model.

    What the evidence does not show is not assumed: only what is proven is a success. An admitted failure is
    one whatever the evidence shows.
    """

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """See `Juror`.

        Raises:
            ValueError: The case has no rules.
        """
        if case.weigh is None:
            raise ValueError(f"problem {case.name} has no rules to judge by")
        weighed = case.weigh(case.submission)
        admitted = admits_failure(case.submission.message)
        success = weighed.relevant and weighed.proven is True and not admitted
        words = "The message admits a failure. " * admitted + weighed.why
        vote = Vote(weighed.relevant, success, words, tuple(weighed.rounds))
        return lambda: [Ballot(number, vote) for number in numbers]
