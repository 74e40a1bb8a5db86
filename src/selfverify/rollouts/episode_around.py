"""An episode around another one."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.tags import Tagged


class EpisodeWrapper(Episode):
    """Passes everything on to another episode; a subclass changes or notes a part of it.

    Args:
        inner: The other episode.
    """

    def __init__(self, inner: Episode) -> None:
        self.inner, self.channel = inner, inner.channel
        self.may_take_back = inner.may_take_back

    def expected_observations(self) -> Sequence[Observation]:
        """See `Episode`."""
        return self.inner.expected_observations()

    def reset(self) -> Observation | None:
        """See `Episode`."""
        return self.inner.reset()

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`."""
        return self.inner.step(said)

    def probed(self, said: PolicyTurn) -> None:
        """See `Episode`."""
        self.inner.probed(said)

    def answers(self) -> Sequence[Tagged]:
        """See `Episode`."""
        return self.inner.answers()

    def result(self) -> EpisodeResult:
        """See `Episode`."""
        return self.inner.result()

    def release(self) -> None:
        """See `Episode`."""
        self.inner.release()
