"""Bearer keys: who may ask a server of ours."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path

from selfverify.core.errors import ConfigError
from selfverify.core.files import read_regular


class Keys:
    """Bearer keys, kept and compared as digests.

    Every key is compared, each in constant time, so that timing does not tell which key was close.

    Args:
        keys: The keys.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._known = [(digest.hex()[:8], digest) for digest in digests]

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, header: str | None) -> str | None:
        """Return the name of the key in an ``Authorization`` header; None for an unknown key.

        A key is called by the first digits of its SHA-256.
        """
        scheme, _, given = (header or "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for name, known in self._known:
            if hmac.compare_digest(known, digest):
                found = name
        return found if scheme.lower() == "bearer" else None


def find_keys(variable: str, path: Path | None) -> Keys:
    """Return the keys of clients: those in an environment variable, apart by commas, and those in a file.

    Raises:
        ConfigError: `read_keys` cannot read the file.
    """
    given = [key.strip() for key in os.environ.get(variable, "").split(",")]
    return Keys([key for key in given if key] + (read_keys(path) if path else []))


def read_keys(path: Path) -> list[str]:
    """Read keys from a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    try:
        lines = [line.strip() for line in read_regular(path).decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys {path} cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key; leave it out to serve everybody who can reach the port")
    return keys
