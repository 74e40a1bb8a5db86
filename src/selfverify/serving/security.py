"""Who may ask, and how often."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from selfverify.errors import ConfigError

MOST_BUCKETS = 10_000


class Keys:
    """Bearer keys, kept and compared as digests.

    Every key is compared, each in constant time, so that time says nothing about which one was close.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, header: str | None) -> str | None:
        """A name (never the key) of the key in an ``Authorization`` header; None if it is not among them."""
        scheme, _, given = (header or "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known.hex()[:8]
        return found if scheme.lower() == "bearer" else None


def read_keys(path: Path) -> list[str]:
    """Keys from a file, one a line; empty lines and lines that begin with # don't count.

    Raises:
        ConfigError: It cannot be read, or holds none.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys {path} cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key; leave it out to serve everybody who can reach the port")
    return keys


class RateLimit:
    """A token bucket per caller: ``per_minute`` requests on average, up to as many (at least one) at once.

    Args:
        per_minute: None is no limit.
        clock: Seconds.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """0 if the caller may ask now, which counts; else the seconds until it may."""
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
