"""Writing files whole or not at all, so that a crash leaves the old file or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError


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
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output: the folder {folder} cannot be made ({error.strerror}); name another one"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all. When this returns, the text is on the disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        sync_file(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented, whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")
