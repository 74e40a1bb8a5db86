"""Programs that serve, on a free port of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port of the loopback that nobody uses yet."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(words: Sequence[str], log: Path, environment: Mapping[str, str], seconds: int) -> Iterator[str]:
    """Run a Python program that answers ``/health`` once it serves, until the block is over.

    Args:
        words: What follows the interpreter; ``--host`` and ``--port`` are added.
        log: Gets what it prints.
        environment: Variables beside those of this process.
        seconds: How long it may take to start.

    Yields:
        Its address.
    """
    port = free_port()
    command = [sys.executable, *words, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as out:
        # A group of its own: what it starts itself ends with it.
        process = subprocess.Popen(
            command,
            stdout=out, stderr=subprocess.STDOUT, env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(seconds):
                assert process.poll() is None, log.read_text()[-3000:]
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=2).close()
                    break
                except OSError:
                    time.sleep(1)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
