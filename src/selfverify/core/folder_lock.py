"""A lock on a folder, so that only one process at a time writes into it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from selfverify.core.errors import ConfigError

LOCK_FILE = ".lock"
"""The locked file in the folder. It says who holds the lock, and is deleted with it."""

_held: ContextVar[frozenset[Path]] = ContextVar("folders that the call at work holds", default=frozenset())


@contextmanager
def only_writer(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a folder's lock. It ends with the process at the latest, also with one that is killed.

    What is called meanwhile may take it again. Where the system or the file system knows no such locks,
    nothing is locked.

    Args:
        folder: The folder; it has to be there.
        wait_s: How long to wait for another holder to end.

    Raises:
        ConfigError: Another process, or another thread of this one, holds it; the message says which.
    """
    place = folder.resolve()
    if sys.platform == "win32" or place in _held.get():
        yield
        return
    descriptor = _locked(folder, time.monotonic() + wait_s)
    token = _held.set(_held.get() | {place})
    try:
        yield
    finally:
        _held.reset(token)
        with suppress(OSError):
            os.unlink(folder / LOCK_FILE)
        os.close(descriptor)


def _locked(folder: Path, deadline: float) -> int:
    """The descriptor of the folder's lock file, which is locked as long as it is open."""
    import fcntl

    path = folder / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return descriptor  # some network file systems know no locks
            holder = os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{folder} is in use: {holder or 'another process'} is writing into it; wait for it or "
                    "end it, or choose another folder"
                ) from None
            time.sleep(0.05)
            continue
        if _is_at(path, descriptor):
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {since},"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
            return descriptor
        os.close(descriptor)  # its last holder has deleted it meanwhile


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
