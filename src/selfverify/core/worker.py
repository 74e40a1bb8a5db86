"""A worker's process: ``python -m selfverify.core.worker MODULE FUNCTION TIMEOUT_S MEMORY_MB``.

It reads one JSON list of arguments per line from its standard input and answers each with one line,
``{"value": ...}`` or ``{"error": "..."}``. It imports nothing but the standard library and what the
function's module needs, so that it starts quickly and its limit of memory is the function's. It ends by
itself when its parent is gone, even while the function hangs.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

GRACE_S = 5.0
"""Seconds that the parent has to kill a hanging worker before the worker ends itself."""


def resolve(module: str, name: str) -> Callable[..., Any]:
    """Return the top-level function ``name`` of ``module``."""
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def serve(function: Callable[..., Any], requests: IO[bytes], replies: IO[bytes], timeout_s: float) -> None:
    """Answer requests until there are no more."""
    with open(os.devnull, "wb") as nowhere:
        for line in requests:
            # This watchdog is a thread of C: it ends a worker whose parent was killed even when the function
            # holds the interpreter's lock (a power of large integers, a regular expression), and leaves
            # SIGALRM to the function.
            faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=nowhere)
            try:
                reply = json.dumps({"value": function(*json.loads(line))})
            except Exception as error:
                reply = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
            faulthandler.cancel_dump_traceback_later()
            replies.write(reply.encode() + b"\n")
            replies.flush()


def main(arguments: list[str]) -> None:
    """Serve on copies of the standard streams: what the function prints goes to standard error."""
    module, name, timeout_s, memory_mb = arguments
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(memory_mb) << 20,) * 2)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        function = resolve(module, name)
    except Exception as error:
        replies.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode() + b"\n")
        return
    replies.write(b'{"value": "ready"}\n')
    replies.flush()
    try:
        serve(function, requests, replies, float(timeout_s))
    except BrokenPipeError:
        os._exit(1)  # the parent is gone


def search_path() -> dict[str, str]:
    """Return this process's environment, for a child that finds modules where this process does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def kill_session(process: Any) -> None:
    """End a process that has a session of its own, with all that it has started."""
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def end_with_parent(stop: Callable[[], object], force_s: float) -> None:
    """Watch over the parent from now on, on a thread, and end this process with it, also if it was killed.

    The parent keeps a pipe to this process's standard input open, and writes nothing into it. The pipe ends
    with those who hold its other end.

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


if __name__ == "__main__":
    main(sys.argv[1:])
