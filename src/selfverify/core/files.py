"""Reading and writing files with errors that name them, and reading nothing but regular files.

The system's own error does not say which file it is about when a disk is full or broken. A pipe or a device
in place of a file would keep its reader waiting, or never end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from selfverify.core.errors import FileError, IrregularFileError
from selfverify.core.folder_lock import require_held

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
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def reason_of(error: OSError) -> str | None:
    """What people can do about an error of the system; None where nothing more than it says is known."""
    return _REASONS.get(error.errno or 0)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Turn errors of the system into one that names a file: the one that they name, or else ``path``.

    Raises:
        FileError: Something inside has raised an `OSError`.
    """
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        named = error.filename2 or error.filename
        reason = reason_of(error) or error.strerror or str(error)
        about = path if named is None or isinstance(named, int) else named
        raise FileError(error.errno, reason, os.fsdecode(about)) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those around it, unless it is there.

    Raises:
        FileError: It cannot be made, or is a file; or it is in a folder that was lost (`require_held`).
    """
    require_held(folder)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


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
