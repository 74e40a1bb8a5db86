"""How busy the machine is with all programs that run on it."""

from __future__ import annotations

import os

SPARE = 1.25
"""A run's own threads may keep all cores busy; this much more is taken for other programs."""


def busy() -> str:
    """Say in a sentence that more threads want to run than there are cores; empty where they do not.

    The load is the system's average over the last minute. Windows has none, and is never busy here.
    """
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= SPARE * cores:
        return ""
    return (
        f"the machine is busy: on average {load:.1f} threads wanted to run in the last minute, and it has "
        f"{cores} cores; other programs slow this run down"
    )
