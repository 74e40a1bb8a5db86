"""Delays Ctrl-C and SIGTERM to the end of a training step, so that a checkpoint can be written."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C or SIGTERM has come; a second one interrupts at once.

    Batch systems send SIGTERM before they stop a job, and torchrun turns a Ctrl-C into SIGTERM.
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
        # This is not the main thread, so the caller has to handle signals.
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
