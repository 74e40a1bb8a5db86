"""Agents whose words are given."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.episode import Episode, Observation, PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.rollouts.wrappers import EpisodeWrapper


class Told(EpisodeWrapper):
    """An agent at work that says these turns, whatever the policy says, and nothing behind them."""

    def __init__(self, inner: Episode, turns: Sequence[str]) -> None:
        super().__init__(inner)
        self.turns = turns

    def step(self, said: PolicyTurn) -> Observation:
        told = self.turns[said.turn] if said.turn < len(self.turns) else ""
        return super().step(PolicyTurn(told, said.tokens, Finish.STOP, said.turn))
