"""A lock on a folder, so that only one process at a time writes into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selfverify.core.errors import ConfigError


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder's lock. It ends with the process at the latest, and leaves nothing in the folder.

    Where the system or the file system knows no such locks, nothing is locked.

    Raises:
        ConfigError: Another process, or another thread of this one, holds it.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"another process is writing into {folder}; wait for it, or choose another folder"
        ) from None
    except OSError:
        pass  # some network file systems
    try:
        yield
    finally:
        os.close(descriptor)
