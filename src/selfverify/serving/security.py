"""How often somebody may ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_BUCKETS = 10_000


class RateLimit:
    """A token bucket per caller: ``per_minute`` requests on average, and up to as many at once, at least one.

    Args:
        per_minute: The average rate; None is no limit.
        clock: Returns the time in seconds.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Return the seconds until a caller may ask. At 0 it may ask now, and its request is counted."""
        if self.per_minute is None:
            return 0.0
        now = self._clock()
        most = max(1.0, self.per_minute)
        left, at = self._buckets.pop(caller, (most, now))
        left = min(most, left + (now - at) * self.per_minute / 60)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, now)
        while len(self._buckets) > MOST_BUCKETS:
            self._buckets.popitem(last=False)  # who has not asked for longest; its bucket is the fullest
        return 0.0 if allowed else (1 - left) * 60 / self.per_minute
