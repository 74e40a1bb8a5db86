"""The request of ours for which servers are called: what it sends along, and how long it waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar


class Origin:
    """A request that we answer by calling servers. Its calls may come from several tasks and threads.

    Args:
        headers: Sent with every call.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.headers = dict(headers or {})
        self.calls = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The seconds in which at least one call was open, so far."""
        with self._lock:
            return self._seconds + (self._clock() - self._since if self._open else 0.0)

    @contextmanager
    def call(self, path: str, model: str | None) -> Iterator[Mapping[str, str]]:
        """Count a call, from its first try to the end of its reply; yield the headers that it sends.

        Args:
            path: What is called, such as ``chat/completions``.
            model: The model that is asked.
        """
        with self._lock:
            self.calls += 1
            self._open += 1
            if self._open == 1:
                self._since = self._clock()
        try:
            yield self.headers
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._seconds += self._clock() - self._since


ORIGIN: ContextVar[Origin | None] = ContextVar("origin", default=None)
"""The request that is being answered, for everything that is done for it."""


@contextmanager
def called(path: str, model: object = None) -> Iterator[Mapping[str, str]]:
    """Count a call for the request that is being answered, if one is; yield the headers that it sends."""
    origin = ORIGIN.get()
    if origin is None:
        yield {}
        return
    with origin.call(path, model if isinstance(model, str) else None) as headers:
        yield headers
