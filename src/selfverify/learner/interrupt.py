"""Ctrl-C between steps, so that a checkpoint can be written."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that is looked at between steps; a second one interrupts at once."""
    pressed = False

    def note(signum: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = signal.signal(signal.SIGINT, note)
    except ValueError:
        # Not the main thread: the caller handles signals.
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)
