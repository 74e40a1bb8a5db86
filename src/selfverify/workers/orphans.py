"""Ends a process whose parent is gone, also one that was killed.

The parent keeps a pipe to the process's standard input open, and writes nothing into it. The pipe ends with
those who hold its other end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable


def end_with_parent(stop: Callable[[], object], force_s: float) -> None:
    """Watch over the parent from now on, on a thread.

    Args:
        stop: Asks this process to end; called when the parent is gone.
        force_s: Seconds that it gets. Then it is ended by force.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        stop()
        time.sleep(force_s)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="waits for the parent's end").start()
