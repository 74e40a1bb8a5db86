"""Ctrl-C and SIGTERM between steps, so that a checkpoint can be written."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a flag, looked at between steps; a second interrupts at once.

    SIGTERM is what batch systems send before they stop a job, and what torchrun makes of a Ctrl-C.
    """
    pressed = False

    def note(signum: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = {kind: signal.signal(kind, note) for kind in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        # Not the main thread: the caller handles signals.
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
