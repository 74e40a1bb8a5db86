"""A lock on a folder, so that only one process at a time writes into it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from selfverify.core.errors import ConfigError, FileError

LOCK_FILE = ".lock"
"""The locked file in the folder. It says who holds the lock, and is deleted with it."""

_Locks = Mapping[Path, os.stat_result]
"""Folders, with what tells their lock files from others that may come into their places."""
_held: ContextVar[_Locks] = ContextVar("folders that the call at work holds", default=MappingProxyType({}))
_known: dict[Path, os.stat_result] = {}
"""Those of all calls of this process, for what their threads write, and of its run's other processes."""


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
        FileError: At the end it is not the folder that was locked (`require_held`).
    """
    place = folder.resolve()
    if sys.platform == "win32" or place in _held.get():
        yield
        return
    descriptor = _locked(folder, time.monotonic() + wait_s)
    # As long as the descriptor is open, no other file gets its number.
    lock = os.fstat(descriptor)
    token = _held.set({**_held.get(), **dict.fromkeys(_names(folder), lock)})
    try:
        with _made_known(folder, lock):
            yield
        require_held(folder)
    finally:
        _held.reset(token)
        if _is_at(place / LOCK_FILE, lock):  # else it is that of whoever holds the place by now
            with suppress(OSError):
                os.unlink(place / LOCK_FILE)
        os.close(descriptor)


@contextmanager
def held_by_another(folder: Path) -> Iterator[None]:
    """Let `require_held` know a folder that another process of the same run holds for this one, too."""
    place, lock = folder.resolve(), None
    if place not in _known:
        with suppress(OSError):  # nothing is locked here, or the folder is on another machine's disk
            lock = os.stat(place / LOCK_FILE)
    with nullcontext() if lock is None else _made_known(folder, lock):
        yield


def _names(folder: Path) -> set[Path]:
    """A folder's own path, and the one it is called by, which may lead through links that change."""
    return {folder.resolve(), folder.absolute()}


@contextmanager
def _made_known(folder: Path, lock: os.stat_result) -> Iterator[None]:
    names = _names(folder)
    _known.update(dict.fromkeys(names, lock))
    try:
        yield
    finally:
        for name in names:
            if _known.get(name) is lock:  # not that of a call which has begun there since
                del _known[name]


def require_held(path: Path) -> None:
    """Check that the folders around ``path`` which this process holds are still those that it has locked.

    Everything that writes calls this before. A folder may be deleted, moved, or replaced by another run's at
    any time, as may a link to it, and what is written then would be lost, or be mixed with the other run's.

    Raises:
        FileError: One is not; nothing may be written there.
    """
    names = _names(path)
    for folder, lock in {**_known, **_held.get()}.items():
        is_inside = any(name.is_relative_to(folder) for name in names)
        if is_inside and not _is_at(folder / LOCK_FILE, lock):
            raise FileError(
                errno.ENOENT,
                "this folder was deleted, moved or taken over by another run while this one wrote into it; "
                "nothing more is written. What was moved can be gone on with where it is now; what was not "
                "has to be started anew",
                str(folder),
            )


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
        if _is_at(path, os.fstat(descriptor)):
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {since},"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
            return descriptor
        os.close(descriptor)  # its last holder has deleted it meanwhile


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except (FileNotFoundError, NotADirectoryError):
        return False
