"""An episode around another one."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.tags import Tagged


class EpisodeAround(Episode):
    """Passes everything on to another episode; a subclass changes or notes a part of it.

    Args:
        inner: The other episode.
    """

    def __init__(self, inner: Episode) -> None:
        self.inner, self.channel = inner, inner.channel
        self.may_take_back = inner.may_take_back

    def foreseen(self) -> Sequence[Reply]:
        """See `Episode`."""
        return self.inner.foreseen()

    def begin(self) -> Reply | None:
        """See `Episode`."""
        return self.inner.begin()

    def reply(self, said: Said) -> Reply:
        """See `Episode`."""
        return self.inner.reply(said)

    def aside(self, said: Said) -> None:
        """See `Episode`."""
        self.inner.aside(said)

    def answers(self) -> Sequence[Tagged]:
        """See `Episode`."""
        return self.inner.answers()

    def ending(self) -> Ending:
        """See `Episode`."""
        return self.inner.ending()

    def close(self) -> None:
        """See `Episode`."""
        self.inner.close()
