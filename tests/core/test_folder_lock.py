"""Only one writes into a folder at a time, and nobody waits for a dead one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from selfverify.core.errors import ConfigError
from selfverify.core.folder_lock import LOCK_FILE, only_writer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")

HOLD = """
import sys, time
from pathlib import Path
from selfverify.core.folder_lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the folder until its input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline() == b"held\n"
    yield made
    made.kill()
    made.wait()
    for stream in (made.stdin, made.stdout):
        assert stream is not None
        stream.close()


def test_a_second_process_is_told_who_holds_the_folder(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    named = rf"{tmp_path} is in use: process {holder.pid} on {socket.gethostname()}, since \d{{4}}-.* is writ"
    with pytest.raises(ConfigError, match=named), only_writer(tmp_path):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with only_writer(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / LOCK_FILE).read_text()
    assert not any(tmp_path.iterdir())


def test_one_can_wait_for_the_folder(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert holder.stdin is not None
    with pytest.raises(ConfigError, match="is in use"), only_writer(tmp_path, wait_s=0.2):
        pass
    holder.stdin.close()
    with only_writer(tmp_path, wait_s=60.0):
        assert holder.wait(60.0) == 0


def test_what_is_called_meanwhile_may_take_it_again_and_no_other_thread(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    refused: list[ConfigError] = []

    def other() -> None:
        try:
            with only_writer(tmp_path):
                pass
        except ConfigError as error:
            refused.append(error)

    with only_writer(tmp_path), only_writer(tmp_path / "link"):
        pass
    with only_writer(tmp_path):
        with only_writer(tmp_path):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert f"process {os.getpid()} " in str(refused[0])
    other()
    assert len(refused) == 1


def test_of_many_at_once_one_at_a_time_holds_the_folder(tmp_path: Path) -> None:
    """Also while lock files are deleted and made."""
    inside: list[int] = []

    def hold(number: int) -> None:
        with only_writer(tmp_path, wait_s=60.0):
            inside.append(number)
            assert inside == [number]
            inside.remove(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(hold, range(40)))
    assert not any(p for p in tmp_path.iterdir())
