"""What tasks have in common whose questions are answered by looking again with tools."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from PIL.Image import Image

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, RolloutHook
from selfverify.core.problem import Problem
from selfverify.looking.look_episode import VisualEpisode
from selfverify.looking.look_settings import VisualConfig
from selfverify.looking.look_stopping import StoppingVerifier
from selfverify.looking.visual_budget import estimated_tokens_of
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task


class VisualTask(Task):
    """A task whose conversations are `VisualEpisode`s, with a verifier listening where one is named.

    Attributes:
        settings: How a model looks.
        stopping: What ends looking.
    """

    settings: VisualConfig
    stopping: StoppingVerifier
    reasoner: Policy | None = None
    """The model that looks, where it runs here."""

    @abstractmethod
    def look(self, problem: Problem) -> VisualEpisode:
        """The conversation about a problem of this task."""

    def set_policy(self, policy: object) -> None:
        """See `Task`."""
        if isinstance(policy, Policy):
            self.reasoner = policy

    def tokens_of(self, image: Image) -> int:
        """How many visual tokens an image takes."""
        if self.reasoner is None:
            return estimated_tokens_of(image)
        return self.reasoner.encoder.image(image, "an image that is shown", several=True).placeholders

    def hook(self) -> RolloutHook | None:
        """See `Task`: the verifier, where one is named."""
        return self.stopping.listener(self.reasoner)

    def open(self, problem: Problem, seed: int) -> Episode:
        """See `Task`."""
        return self.look(problem)

    def looking_by(self, changes: Mapping[str, Any]) -> Self:
        """The same task with other settings of looking.

        Raises:
            ConfigError: See `StoppingVerifier`.
            ValidationError: They are none.
        """
        changed = copy.copy(self)
        changed.settings = VisualConfig(**{**self.settings.model_dump(), **changes})
        changed.stopping = self.stopping.changed(changed.settings)
        changed.limits = self.limits.model_copy(update={"turns": changed.settings.max_steps + 1})
        return changed

    def seen(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> Sequence[float] | None:
        """How much of what the answer needs has been shown after each step, as a share from 0 to 1.

        Args:
            problem: The problem.
            steps: The conversation's `VisualStep`s, as its trajectory keeps them.

        Returns:
            None where the task does not know.
        """
        return None

    def enough(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> int | None:
        """After which step everything has been shown that the answer needs; 0 where it never has.

        Args:
            problem: See `seen`.
            steps: See `seen`.

        Returns:
            None where the task does not know.
        """
        shares = self.seen(problem, steps)
        if shares is None:
            return None
        return next((h for h, share in enumerate(shares, start=1) if share >= 1), 0)


def limits_of(settings: VisualConfig) -> RolloutLimits:
    """The limits of conversations: as many turns as there may be steps, and the answer."""
    return RolloutLimits(turns=settings.max_steps + 1)
