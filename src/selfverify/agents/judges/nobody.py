"""Nobody judges: for what a person asks freely, of which no goal is known."""

from __future__ import annotations

from selfverify.agents.cases import Case, Judgement, Panel, Pending


class Nobody(Panel):
    """Every submission is without a verdict."""

    def ask(self, case: Case) -> Pending:
        """See `Panel`."""
        return lambda: Judgement(None, None, (), "nobody was asked to judge")
