"""Writing files so that they survive a crash, and saying how much room there is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the disk: without it, a power cut may lose a file's name."""
    if os.name != "nt":  # Windows neither allows nor needs it
        sync_file(path)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all, on the disk when this returns."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        sync_file(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def folder_size(path: Path) -> int:
    """Bytes of all files under ``path``; 0 if it does not exist."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # removed meanwhile: it takes no room any more
    return total


def space_report(needed: int, folder: Path) -> str:
    """``1.3 GiB and 0.2 GiB are free``."""
    return f"{_readable(needed)} and {_readable(shutil.disk_usage(folder).free)} are free"


def _readable(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
