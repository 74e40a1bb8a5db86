"""The tokens that keys have spent, kept in a file over restarts."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from selfverify.core.errors import ConfigError

logger = logging.getLogger("selfverify.serving")

_TABLE = "CREATE TABLE IF NOT EXISTS spent (key TEXT PRIMARY KEY, tokens INTEGER NOT NULL)"
_ADD = "INSERT INTO spent VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET tokens = tokens + excluded.tokens"


class Budget:
    """The tokens that one key may take in all.

    Args:
        most: So many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.saved = 0
        """What the ledger says is spent, by all gateways that share it."""
        self.unsaved = 0
        """What was spent here and is not in the ledger yet."""
        self.held = 0
        """What the requests that are being worked on may take."""

    @property
    def spent(self) -> int:
        """All that was spent."""
        return self.saved + self.unsaved


class Ledger:
    """Keeps what is spent in an SQLite file, which gateways on one machine may share.

    Args:
        path: The file; it is made if it is not there.
        budgets: The budgets, by their keys' names.

    Raises:
        ConfigError: The file cannot be read or written.
    """

    save_every_s = 1.0
    """So many seconds are lost at most when the process is killed."""

    def __init__(self, path: Path, budgets: Mapping[str, Budget]) -> None:
        self.path, self.budgets = path, budgets
        self._saving = asyncio.Lock()
        try:
            with closing(self._opened()) as file, file:
                file.execute(_TABLE)
            self._taken_in(self._exchanged({}))
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise ConfigError(f"--key-usage {path}: the file cannot be used: {error}") from None

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Save every second, and at the end."""
        saving = asyncio.create_task(self._save_again_and_again())
        try:
            yield
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await self.save()

    async def save(self) -> None:
        """Save what was spent here, and read what others have spent. A fault goes to the log, and nothing is
        lost by it but to a later one of this process."""
        async with self._saving:
            new = {name: budget.unsaved for name, budget in self.budgets.items() if budget.unsaved}
            try:
                saved = await asyncio.to_thread(self._exchanged, new)
            except (sqlite3.Error, ValueError, OverflowError) as error:
                logger.error("--key-usage %s: the tokens of keys cannot be saved: %s", self.path, error)
                return
            for name, tokens in new.items():
                self.budgets[name].unsaved -= tokens
            self._taken_in(saved)

    async def _save_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self.save_every_s)
            await asyncio.shield(self.save())  # one that is left half done would be counted twice

    def _taken_in(self, saved: Mapping[str, int]) -> None:
        for name, budget in self.budgets.items():
            budget.saved = saved.get(name, 0)

    def _exchanged(self, new: Mapping[str, int]) -> dict[str, int]:
        """Add what is new to the file; return all that is in it."""
        with closing(self._opened()) as file, file:
            if new:
                file.executemany(_ADD, new.items())
            return {str(name): int(tokens) for name, tokens in file.execute("SELECT key, tokens FROM spent")}

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)
