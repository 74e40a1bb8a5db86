"""Reading and writing files: whole or not at all, by one writer, with errors that name them.

- Errors (`naming`): the system's own do not say which file they are about when a disk is full or broken.
- Reading (`open_regular`): nothing but regular files. A pipe or a device in place of one would keep its
  reader waiting, or never end.
- Writing (`written_whole`): a crash leaves the old file or the new one.
- Locks (`only_writer`): only one process at a time writes into a folder.
- Digests (`file_digests`): a byte that a disk has changed is noticed.
- Settings (`flatten`, `differences`): nested ones are named by dots, and what differs between two sets of
  them is listed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from selfverify.core.errors import ConfigError, FileError, IrregularFileError

LOCK_FILE = ".lock"
"""The locked file in the folder. It says who holds the lock, and is deleted with it."""

_Locks = Mapping[Path, os.stat_result]
"""Folders, with what tells their lock files from others that may come into their places."""
_held: ContextVar[_Locks] = ContextVar("folders that the call at work holds", default=MappingProxyType({}))
_known: dict[Path, os.stat_result] = {}
"""The locks of all calls of this process, for what their threads write, and of its run's other processes."""


@contextmanager
def only_writer(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a folder's lock. It ends with the process at the latest, also with one that is killed.

    Calls made meanwhile may take it again. Where the system or the file system knows no such locks,
    nothing is locked.

    Args:
        folder: The folder; it has to be there.
        wait_s: How long to wait for another holder to end.

    Raises:
        ConfigError: Another process, or another thread of this one, holds it; the message says which.
        FileError: The lock cannot be written, as on a full disk; or at the end it is not the folder that was
            locked (`require_held`).
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
        with naming(place / LOCK_FILE):
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {since},"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        with _made_known(folder, lock):
            yield
        require_held(folder)
    finally:
        _held.reset(token)
        if _is_at(place / LOCK_FILE, lock):  # else it belongs to the process that holds the place by now
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
    """Check that this process still holds the folders around ``path`` that it has locked.

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
        with naming(path):
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
            return descriptor
        os.close(descriptor)  # its last holder has deleted it meanwhile


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except (FileNotFoundError, NotADirectoryError):
        return False


_FULL = "the disk is full; free some space, or write to another disk"
_REASONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "there is no room left for this user; free some, or write to another disk",
    errno.EFBIG: "the file would become larger than this system allows",
    errno.EROFS: "this file system is read-only; choose another folder",
    errno.EIO: "the disk does not read or write it (input/output error)",
    errno.ENAMETOOLONG: "this name is longer than a name of a file can be",
}
"""Our words for what people can do something about; other errors keep the system's."""
OF_THE_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
"""Errors of which whoever writes next has one, too."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust (safetensors, tokenizers) name the system's errors, in exceptions of their own."""


def _number_of(error: Exception) -> int | None:
    """The system's number of an error; None where it is about something else."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = _OS_ERROR.search(str(error))
    return None if found is None else int(found[1])


def reason_of(error: OSError) -> str | None:
    """Return what people can do about an error of the system; None where its own words say all."""
    return _REASONS.get(error.errno or 0)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Turn errors of the system into one that names a file: the one that they name, or else ``path``.

    Raises:
        FileError: Something inside has raised an `OSError`, or what another library makes of one.
    """
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        if (number := _number_of(error)) is None:
            raise
        named = getattr(error, "filename2", None) or getattr(error, "filename", None)
        reason = _REASONS.get(number) or getattr(error, "strerror", None) or str(error)
        about = path if named is None or isinstance(named, int) else named
        raise FileError(number, reason, os.fsdecode(about)) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those around it, unless it is there.

    Raises:
        FileError: It cannot be made, or is a file; or it is in a folder that was lost (`require_held`).
    """
    require_held(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = reason_of(error) or f"this folder cannot be made ({error.strerror}); name another one"
        raise FileError(error.errno, reason, str(folder)) from error


def require_regular(path: Path) -> None:
    """Refuse what is no regular file before it is opened: a pipe waits then for a writer.

    Raises:
        IrregularFileError: It is a folder, a pipe, a socket or a device.
        FileError: It is not there, or cannot be looked at.
    """
    with naming(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_one, name in _KINDS if is_one(mode)), "something else")
        raise IrregularFileError(errno.EINVAL, f"this is {kind}, and a regular file is needed", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read, if it is a regular one or a link to one.

    Raises:
        IrregularFileError: It is a folder, a pipe, a socket or a device.
        FileError: It cannot be opened.
    """
    require_regular(path)
    with naming(path):
        return path.open("rb")


def read_regular(path: Path) -> bytes:
    """Return a regular file's content.

    Raises:
        FileError: As `open_regular`; or it cannot be read.
    """
    with naming(path), open_regular(path) as file:
        return file.read()


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the disk. Without this, a power cut may lose a file's name."""
    if os.name != "nt":  # Windows neither allows nor needs this
        sync_file(path)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give another name to write a file under, which becomes the file unless something inside raises.

    When this returns, the file is on the disk. If it raises, what was there before is there still.

    Raises:
        FileError: The file cannot be written: the disk is full, for example, or the folder is gone or lost
            (`require_held`).
    """
    require_held(path)
    partial = path.with_name(path.name + ".partial")
    with naming(path):
        try:
            yield partial
            sync_file(partial)
            require_held(path)
            os.replace(partial, path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # a folder that cannot be written to: the cause is what counts
                partial.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all (`written_whole`)."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 whole or not at all (`written_whole`). Half a character becomes "?"."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented, whole or not at all (`written_whole`)."""
    write_text(path, json.dumps(value, indent=1) + "\n")


PIECE = 64 * 2**20
"""Bytes that are hashed by one thread; the digest is that of the pieces' digests."""


def file_digests(paths: Iterable[Path]) -> dict[Path, str]:
    """Return 32 hex digits (BLAKE2b) for each file, read by as many threads as there are cores, at most 8.

    Raises:
        OSError: A file cannot be read.
    """
    sizes = {path: path.stat().st_size for path in paths}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        # Hashing leaves the interpreter's lock.
        pieces = {
            path: [threads.submit(_piece, path, begin) for begin in range(0, size, PIECE)]
            for path, size in sizes.items()
        }
        return {
            path: hashlib.blake2b(b"".join(piece.result() for piece in found), digest_size=16).hexdigest()
            for path, found in pieces.items()
        }


def _piece(path: Path, begin: int) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        left = PIECE
        while left and (read := file.read(min(left, 2**20))):
            hashed.update(read)
            left -= len(read)
    return hashed.digest()


LONGEST = 200
"""Characters of a value in a phrase."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Put nested values under dotted names: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each value that differs. A name that is missing counts as None."""
    before, after = flatten(old), flatten(new)
    return [
        f"{name} was {_short(before.get(name))} and is now {_short(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _short(value: Any) -> str:
    """A value as Python writes it; of one that is long, such as a list of names, the beginning."""
    text = repr(value)
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST] + (f"... ({len(value)} in all)" if isinstance(value, list) else "...")
