"""Nobody judges: for what a person asks freely, of which no goal is known."""

from __future__ import annotations

from selfverify.agents.cases import Case, Judgement, JudgePanel, Pending


class NullJudge(JudgePanel):
    """Every submission is without a verdict."""

    def ask(self, case: Case) -> Pending:
        """See `JudgePanel`."""
        return lambda: Judgement(None, None, (), "nobody was asked to judge")
