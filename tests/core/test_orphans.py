"""A process ends with its parent, by itself or by force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdin=subprocess.PIPE)
child.wait()
"""
CHILD = """
import os, signal, sys, time
from selfverify.core.worker import end_with_parent
def stop():
    print("the parent is gone", flush=True)
    if sys.argv[1] == "well":
        os.kill(os.getpid(), signal.SIGINT)
end_with_parent(stop, 60.0 if sys.argv[1] == "well" else 0.1)
try:
    print("begun", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a long sleep would not end it
except KeyboardInterrupt:
    print("ended well", flush=True)
"""


@pytest.mark.parametrize(("how", "last"), [("well", ["ended well"]), ("by force", [])])
def test_a_process_ends_when_its_parent_is_killed(how: str, last: list[str], tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, how], stdout=subprocess.PIPE, text=True
    )  # its output is the child's, and ends with it
    assert parent.stdout is not None and parent.stdout.readline() == "begun\n"
    os.kill(parent.pid, signal.SIGKILL)
    told = parent.communicate(timeout=30)[0].splitlines()
    assert told == ["the parent is gone", *last]
