"""Writing files whole or not at all, so that a crash leaves the old file or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.core.files import naming
from selfverify.core.folder_lock import require_held


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


def make_output_folder(folder: Path) -> None:
    """Make the folder that ``output`` names, unless it is there.

    Raises:
        ConfigError: It cannot be made, or it is a file.
        FileError: It is in a folder that was lost (`require_held`).
    """
    require_held(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output: the folder {folder} cannot be made ({error.strerror}); name another one"
        ) from None


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
