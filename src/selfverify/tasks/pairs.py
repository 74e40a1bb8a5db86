"""`pairs`: preferences among conversations, from files, for `dpo` (VTS-V §3.3: the verifier's training)."""

from __future__ import annotations

from typing import Any

from selfverify.core.config import RolloutLimits
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.data.fields import Row
from selfverify.data.preferences import SIDES, convert_preference
from selfverify.tasks.base import DemonstratedConversation, Verdict
from selfverify.tasks.replayed import Replayed, asked_of, heard_between, turns_of
from selfverify.tasks.row_task import RowTask, RowTaskConfig


class PreferencesConfig(RowTaskConfig):
    """Which pairs there are."""


class Preferences(RowTask):
    """A problem is what both sides of a pair begin with; each side is a conversation that goes on from it."""

    name = "pairs"
    summary = "preferences among conversations from files, for direct preference optimisation"
    config_class = PreferencesConfig
    config: PreferencesConfig
    convert = staticmethod(convert_preference)
    needs = ("prompt", "chosen", "rejected")
    tags = ("answer",)
    limits = RolloutLimits(turns=100)

    def ask(self, row: Row, id: str) -> Problem:
        """See `RowTask.ask`."""
        messages, images = asked_of(row["prompt"])
        target: dict[str, Any] = {
            side: {
                "said": [row[side][place]["content"] for place in turns_of(row[side])],
                "heard": heard_between(row[side]),
                "cuts": row.get(f"{side}_cuts", []),
            }
            for side in SIDES
        }
        if target["chosen"]["said"] == target["rejected"]["said"]:
            raise DataError(f"{id}: both sides say the same")
        return Problem(id, messages, images, target, {"category": row["category"]})

    def demonstrate_pair(self, problem: Problem) -> tuple[DemonstratedConversation, DemonstratedConversation]:
        """See `Task`."""
        chosen, rejected = (
            DemonstratedConversation(side["said"], Replayed(side["heard"], side["cuts"]))
            for side in (problem.target[name] for name in SIDES)
        )
        return chosen, rejected

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Nothing is said of a policy's own words."""
        return Verdict(0.0, False, unjudged="pairs are to be learnt from, not measured")
