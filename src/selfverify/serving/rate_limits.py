"""How much of something a minute may have.

The library ``limits`` was weighed: it counts in windows, keeps an entry for each unit of a moving one, and
takes nothing that becomes known only afterwards, as the tokens of an answer do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_NEARLY = 1e-6
"""Seconds that are no wait: the error of adding up times."""


class Bucket:
    """A token bucket: ``per_minute`` units on average, and up to as many at once, at least one.

    More may be taken than is there, since some costs become known afterwards. Then there is less than
    nothing, until time has made up for it.

    Args:
        per_minute: The average.
        clock: Returns the time in seconds.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.most = max(1.0, per_minute)
        self._clock = clock
        self._left, self._at = self.most, clock()

    @property
    def left(self) -> float:
        """What is there now; below zero where too much was taken."""
        now = self._clock()
        self._left = min(self.most, self._left + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._left

    def wait_s(self, amount: float) -> float:
        """Return the seconds until so much is there, or until the bucket is full if it never is."""
        wait = (min(amount, self.most) - self.left) * 60 / self.per_minute
        return wait if wait > _NEARLY else 0.0

    def take(self, amount: float) -> None:
        """Take so much, there or not; a negative amount is given back."""
        self._left = min(self.most, self.left - amount)

    def headers(self, kind: str) -> dict[str, str]:
        """Return OpenAI's headers for a bucket of ``requests`` or ``tokens``."""
        left = self.left
        return {
            f"x-ratelimit-limit-{kind}": f"{int(self.most)}",
            f"x-ratelimit-remaining-{kind}": f"{max(0, int(left + _NEARLY))}",
            f"x-ratelimit-reset-{kind}": duration((self.most - left) * 60 / self.per_minute),
        }


def duration(seconds: float) -> str:
    """Return a time as OpenAI's headers have it: ``120ms``, ``1.5s``, ``6m0s``, ``1h0m5s``."""
    milliseconds = round(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    told = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{told}"
    return f"{minutes}m{told}" if minutes else told
