"""A module that takes a worker's process very long to import, and others no time."""

from __future__ import annotations

import sys
import time

main = sys.modules["__main__"].__spec__
if main is not None and main.name == "selfverify.core.worker":
    time.sleep(100)


def echo(value: int) -> int:
    return value
