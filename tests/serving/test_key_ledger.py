"""What keys have spent is there after a restart, and told to other gateways."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from selfverify.core.errors import ConfigError
from selfverify.serving.key_ledger import Budget, Ledger


def opened(path: Path, *names: str) -> tuple[Ledger, dict[str, Budget]]:
    budgets = {name: Budget(100) for name in names}
    return Ledger(path, budgets), budgets


def test_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"

    async def spend(tokens: int) -> int:
        ledger, budgets = opened(path, "a", "b")
        async with ledger.kept():
            budgets["a"].unsaved += tokens
        return budgets["a"].spent

    assert asyncio.run(spend(30)) == 30
    assert asyncio.run(spend(12)) == 42
    _, budgets = opened(path, "b", "a")
    assert (budgets["a"].spent, budgets["b"].spent) == (42, 0)


def test_gateways_share_it(tmp_path: Path) -> None:
    """And it is saved now and then, not only at the end."""

    async def main() -> None:
        (first, ours), (second, theirs) = (opened(tmp_path / "u", "a") for _ in range(2))
        first.save_every_s = second.save_every_s = 0.01
        async with first.kept(), second.kept(), asyncio.timeout(20):
            ours["a"].unsaved += 5
            theirs["a"].unsaved += 7
            while (ours["a"].saved, theirs["a"].saved) != (12, 12):
                await asyncio.sleep(0.01)
        assert ours["a"].unsaved == theirs["a"].unsaved == 0

    asyncio.run(main())


def test_what_cannot_be_saved_is_not_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage.sqlite"
    ledger, budgets = opened(path, "a")
    budgets["a"].unsaved = 9
    path.write_bytes(b"no database" * 100)
    with caplog.at_level(logging.ERROR):
        asyncio.run(ledger.save())
    assert budgets["a"].spent == 9 and "cannot be saved" in caplog.text
    path.unlink()
    ledger = Ledger(path, budgets)
    asyncio.run(ledger.save())
    assert (budgets["a"].saved, budgets["a"].unsaved) == (9, 0)


def test_what_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match=r"--key-usage .*usage\.sqlite: the file cannot be used"):
        Ledger(path, {})
    with pytest.raises(ConfigError, match="cannot be used"):
        Ledger(tmp_path / "nowhere" / "x", {})
