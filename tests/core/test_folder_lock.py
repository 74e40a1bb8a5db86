"""Only one writes into a folder at a time, and nobody waits for a dead one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.core.test_files import full_disk

from selfverify.core.errors import ConfigError, FileError
from selfverify.core.files import (
    LOCK_FILE,
    held_by_another,
    make_folder,
    only_writer,
    write_text,
)
from selfverify.core.jsonl_store import JsonlStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")

HOLD = """
import sys, time
from pathlib import Path
from selfverify.core.files import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the folder until its input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout.readline() == b"held\n"
    yield made
    made.kill()
    made.wait()
    for stream in (made.stdin, made.stdout):
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
    with pytest.raises(ConfigError, match="is in use"), only_writer(tmp_path, wait_s=0.2):
        pass
    holder.stdin.close()
    with only_writer(tmp_path, wait_s=60.0):
        assert holder.wait(60.0) == 0


def test_what_is_called_meanwhile_may_take_it_again_and_no_other_thread(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    def other() -> None:
        with only_writer(tmp_path):
            pass

    with only_writer(tmp_path), only_writer(tmp_path / "link"):
        pass
    with only_writer(tmp_path):
        with only_writer(tmp_path):
            pass
        named = f"process {os.getpid()} "
        with ThreadPoolExecutor(1) as thread, pytest.raises(ConfigError, match=named):
            thread.submit(other).result()
    other()


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


def test_a_full_disk_is_named_and_leaves_no_lock(tmp_path: Path) -> None:
    """Once there is room, the same process may take the folder."""
    with (
        full_disk(0),
        pytest.raises(FileError, match=r"\.lock: the file would become larger"),
        only_writer(tmp_path),
    ):
        pass
    assert not any(tmp_path.iterdir())
    with only_writer(tmp_path):
        pass


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def put_a_file_there(folder: Path) -> None:
    move_away(folder)
    folder.write_text("")


LOSSES = {
    "deleted": shutil.rmtree,
    "moved": move_away,
    "replaced by a file": put_a_file_there,
    "its lock deleted": lambda folder: (folder / LOCK_FILE).unlink(),
}
WRITES: dict[str, Callable[[Path], object]] = {
    "a line": lambda folder: JsonlStore(folder / "rows.jsonl").append({"a": 1}),
    "a file": lambda folder: write_text(folder / "deep.txt", "words"),
    "a folder": lambda folder: make_folder(folder / "deep" / "er"),
    "the folder": make_folder,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_is_written_into_a_folder_that_was_lost(tmp_path: Path, loss: str, write: str) -> None:
    """Nor is it made again, in a thread of the holder's either; and the holder's end says that it is lost."""
    folder = tmp_path / "held"
    folder.mkdir()
    (folder / "rows.jsonl").touch()
    lost = rf"^{folder}: .*deleted, moved or taken over"
    with ExitStack() as held:
        held.enter_context(only_writer(folder))
        WRITES[write](folder)
        LOSSES[loss](folder)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileError, match=lost):
            WRITES[write](folder)
        with ThreadPoolExecutor(1) as thread, pytest.raises(FileError, match=lost):
            thread.submit(WRITES[write], folder).result()
        write_text(tmp_path / "elsewhere", "words")
        (tmp_path / "elsewhere").unlink()
        with pytest.raises(FileError, match=lost):
            held.close()
        assert sorted(tmp_path.rglob("*")) == before
    if loss != "replaced by a file":
        folder.mkdir(exist_ok=True)
        with only_writer(folder):
            WRITES[write](folder)


def test_a_journal_that_was_open_before_does_not_go_on_in_the_folder_of_another(tmp_path: Path) -> None:
    """The other's lock stays, as do its lines, and the other may write."""
    folder, told, go_on = tmp_path / "held", threading.Event(), threading.Event()
    folder.mkdir()

    def other() -> str:
        with only_writer(folder):
            rows = JsonlStore(folder / "rows.jsonl")
            rows.append({"other": 1})
            told.set()
            assert go_on.wait(60)
            rows.append({"other": 2})
            return (folder / LOCK_FILE).read_text()

    with ThreadPoolExecutor(1) as thread, ExitStack() as held:
        held.enter_context(only_writer(folder))
        mine = JsonlStore(folder / "rows.jsonl")
        mine.append({"mine": 1})
        move_away(folder)
        folder.mkdir()
        left = thread.submit(other)
        assert told.wait(60)
        for write in (lambda: mine.append({"mine": 2}), lambda: mine.truncate(0), held.close):
            with pytest.raises(FileError, match=f"{folder}: "):
                write()
        assert (folder / LOCK_FILE).is_file()
        go_on.set()
        assert left.result()
    assert (folder / "rows.jsonl").read_text() == '{"other": 1}\n{"other": 2}\n'
    assert (tmp_path / "moved" / "rows.jsonl").read_text() == '{"mine": 1}\n'
    assert not (folder / LOCK_FILE).exists()


@pytest.mark.parametrize("of_another", [False, True])
def test_a_link_that_leads_elsewhere_by_now_is_not_followed(tmp_path: Path, of_another: bool) -> None:
    """``runs/newest``, say, which the next run sets anew."""
    link = tmp_path / "newest"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link.symlink_to(tmp_path / "first")
    with ExitStack() as held:
        if of_another:
            (tmp_path / "first" / LOCK_FILE).touch()
        held.enter_context(held_by_another(link) if of_another else only_writer(link))
        rows = JsonlStore(link / "rows.jsonl")
        rows.append({"a": 1})
        link.unlink()
        link.symlink_to(tmp_path / "second")
        with pytest.raises(FileError, match=f"{link}: .*moved or taken over"):
            rows.append({"a": 2})
        with pytest.raises(FileError, match=f"{link}: .*moved or taken over"):
            write_text(link / "deep.txt", "words")
        JsonlStore(tmp_path / "first" / "rows.jsonl").append({"a": 3})
        link.unlink()
        link.symlink_to(tmp_path / "first")
    assert (tmp_path / "first" / "rows.jsonl").read_text() == '{"a": 1}\n{"a": 3}\n'
    assert not any((tmp_path / "second").iterdir())


def test_another_process_of_a_run_looks_too(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rows = JsonlStore(tmp_path / "rows.jsonl")
    with held_by_another(tmp_path):
        rows.append({"a": 1})
        with held_by_another(tmp_path):
            (tmp_path / LOCK_FILE).unlink()
            with pytest.raises(FileError, match=f"{tmp_path}: "):
                rows.append({"a": 2})
        with pytest.raises(FileError, match=f"{tmp_path}: "):
            rows.append({"a": 2})
    rows.append({"a": 3})
    with held_by_another(tmp_path):  # there is no lock to look at
        rows.append({"a": 4})
