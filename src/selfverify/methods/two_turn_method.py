"""What methods have in common that train on second turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from selfverify.core.config import EvaluationConfig, RolloutLimits
from selfverify.core.episode import Episode
from selfverify.core.problem import Problem
from selfverify.core.trajectory import SCORE, TURN_1, TURN_2, Group
from selfverify.methods.base import Method, MethodConfig
from selfverify.methods.monitor import group_metrics, turn_metrics
from selfverify.tasks.answering import SECOND_TURN, SelfCorrection
from selfverify.tasks.base import Task


class TwoTurnConfig(MethodConfig):
    """The request that the second turn answers."""

    second_turn: str = Field(
        SECOND_TURN, min_length=1, description="What the second turn, and every further one, is asked."
    )


class TwoTurnMethod(Method):
    """Learns from two-turn trajectories; by default it samples groups of them and compares each group.

    Attributes:
        split_score: Whether the second turn's score is a segment of its own.
    """

    split_score: ClassVar[bool] = False
    compares = True
    config: TwoTurnConfig

    @property
    def channels(self) -> tuple[str, ...]:
        """The two turns, and the score where it is split off."""
        return (TURN_1, TURN_2, SCORE) if self.split_score else (TURN_1, TURN_2)

    @property
    def limits(self) -> RolloutLimits:
        """Two turns."""
        return RolloutLimits(turns=2)

    def open(self, task: Task, problem: Problem, seed: int) -> Episode:
        """A conversation in which the policy is asked to re-examine its answer."""
        words = task.ask_again(self.config.second_turn)
        return SelfCorrection(problem, task.tags, task.verdict, words, split_score=self.split_score)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The common figures and those of the turns."""
        return group_metrics(groups) | turn_metrics(groups)

    def evaluation_faults(self, evaluation: EvaluationConfig) -> list[str]:
        """Second turns that are not measured, or measured after another request.

        A method of supervised fine-tuning is mostly not measured at all, so it may leave them out.
        """
        faults = []
        words, asked = self.config.second_turn, evaluation.second_turn
        if asked is None and self.objective == "surrogate":
            faults.append(
                f"evaluation.second_turn: {self.name} trains second turns; measure them, too: {words!r}"
            )
        elif asked not in (None, words):
            faults.append(
                f"evaluation.second_turn: {asked!r} is not what {self.name} trains with "
                f"(method.second_turn: {words!r})"
            )
        return faults
