"""Who may ask, and how often."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from selfverify.core.errors import ConfigError
from selfverify.serving.serve_settings import KEYS_VARIABLE

MOST_BUCKETS = 10_000


class Keys:
    """Bearer keys, kept and compared as digests.

    Every key is compared, each in constant time, so that timing does not tell which key was close.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, header: str | None) -> str | None:
        """Return a name of the key in an ``Authorization`` header, never the key; None for an unknown key."""
        scheme, _, given = (header or "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known.hex()[:8]
        return found if scheme.lower() == "bearer" else None


def find_keys(path: Path | None) -> Keys:
    """Return the keys of clients: those in the environment variable `KEYS_VARIABLE`, and those in a file.

    Raises:
        ConfigError: `read_keys` cannot read the file.
    """
    given = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",")]
    return Keys([key for key in given if key] + (read_keys(path) if path else []))


def read_keys(path: Path) -> list[str]:
    """Read keys from a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
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
