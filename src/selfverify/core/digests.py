"""Digests of files, by which a byte that a disk has changed is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
