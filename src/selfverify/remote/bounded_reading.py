"""Reads what a server sends, as far as it is not too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def read_at_most(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """Return all that comes; None as soon as it is more than ``most`` bytes."""
    found = bytearray()
    async for part in content.iter_any():
        if len(found) + len(part) > most:
            return None
        found += part
    return bytes(found)
