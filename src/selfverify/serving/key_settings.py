"""The settings of clients' keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from selfverify.core.errors import ConfigError
from selfverify.core.settings import Settings
from selfverify.remote.bearer_keys import read_keys


class ClientKey(Settings):
    """A key of a client, under a name and with limits of its own. The key itself is never a setting."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """What the log calls it: letters, digits, `.`, `_` and `-`."""

    sha256: str | None = None
    """The SHA-256 of the key, in 64 hexadecimal digits."""

    variable: str | None = Field(None, min_length=1)
    """The environment variable that holds the key."""

    file: Path | None = None
    """The file that holds the key, in a line of its own."""

    requests_per_minute: float | None = Field(None, ge=0.1)
    """The most requests a minute, of which one with n candidates counts as n; without it `rate_limit`."""

    tokens_per_minute: float | None = Field(None, ge=1)
    """The most tokens a minute, read and written."""

    budget_tokens: int | None = Field(None, ge=1)
    """The most tokens of all, read and written; needs `key_usage`."""

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, text: str | None) -> str | None:
        if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
            # What stands there may be the key, so it is not quoted.
            raise ValueError("should be the SHA-256 of the key, 64 hexadecimal digits")
        return text

    @model_validator(mode="after")
    def _one_source(self) -> ClientKey:
        if [self.sha256, self.variable, self.file].count(None) != 2:
            raise ValueError(f"the key {self.name!r} needs one of sha256, variable and file")
        return self


def digests(keys: Sequence[ClientKey]) -> dict[str, bytes]:
    """Return the SHA-256 of each key, by its name.

    Raises:
        ConfigError: A key is not where it should be, or stands there twice.
    """
    found: dict[str, bytes] = {}
    for key in keys:
        digest = _digest(key)
        for name, known in found.items():
            if known == digest:
                raise ConfigError(f"the keys {name!r} and {key.name!r} are the same; each needs its own")
        found[key.name] = digest
    return found


def _digest(key: ClientKey) -> bytes:
    if key.sha256 is not None:
        return bytes.fromhex(key.sha256)
    if key.variable is not None:
        text = os.environ.get(key.variable, "").strip()
        if not text:
            raise ConfigError(f"the key {key.name!r}: the environment variable {key.variable} is not set")
        return hashlib.sha256(text.encode()).digest()
    assert key.file is not None
    texts = read_keys(key.file)
    if len(texts) != 1:
        raise ConfigError(f"the key {key.name!r}: {key.file} holds {len(texts)} keys, and one is needed")
    return hashlib.sha256(texts[0].encode()).digest()
