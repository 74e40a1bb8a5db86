"""Work on large data beside the event loop: one piece after the other, so that it waits for one at most.

What holds the interpreter stops all threads. So such work has to go in steps of a few milliseconds, and of
two pieces at once the loop would wait for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE = 2**18
"""From this size on, in bytes, data is large: what is smaller is worked on within a millisecond."""

STEP = 2**18
"""The bytes of a step."""

_thread = ThreadPoolExecutor(1, "large data")


async def in_turn(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns that is called in the one thread for large data, when it is its turn."""
    return await asyncio.get_running_loop().run_in_executor(_thread, partial(function, *args, **kwargs))
