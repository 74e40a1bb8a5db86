"""The free space of a disk, and the size of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def folder_size(path: Path) -> int:
    """Return the bytes of all files under ``path``; 0 if there is no such folder."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # the file was removed meanwhile and takes no room any more
    return total


def space_report(needed: int, folder: Path) -> str:
    """Say how many bytes are needed and how many are free: ``1.3 GiB and 0.2 GiB are free``."""
    return f"{_readable(needed)} and {_readable(shutil.disk_usage(folder).free)} are free"


def _readable(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
