"""A conversation in which a model looks again, whose steps are told as they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from selfverify.core.episode import Observation, PolicyTurn
from selfverify.rollouts.wrappers import EpisodeWrapper
from selfverify.visual.episode import VisualEpisode

OnStep = Callable[[Mapping[str, Any]], None]
"""Told what came of a step (`VisualStep`), once its tool has run; from any thread."""


class ToldLooks(EpisodeWrapper):
    """Tells of every step of a conversation.

    Args:
        look: The conversation.
        tell: Gets the steps.
    """

    def __init__(self, look: VisualEpisode, tell: OnStep) -> None:
        super().__init__(look)
        self.look, self.tell = look, tell

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`."""
        before = len(self.look.steps)
        reply = super().step(said)
        for step in self.look.steps[before:]:
            self.tell(asdict(step))
        return reply
