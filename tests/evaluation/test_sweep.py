"""Sweeps: every problem once, whatever a kill has left of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from selfverify.core import ranks
from selfverify.evaluation.samples import ResumableBatches


@dataclass(frozen=True)
class Square:
    """A row."""

    index: int
    square: int


def swept(
    path: Path | None, total: int = 7, batch: int = 3
) -> tuple[ResumableBatches[Square], list[list[int]]]:
    """A finished sweep, and the shares that it had to work on."""
    done: list[tuple[int, int]] = []
    sweep = ResumableBatches(path, Square, {"total": total}, total, batch, lambda *p: done.append(p))
    worked = []
    for share in sweep.shares():
        worked.append([*share])
        sweep.store(Square(index, index**2) for index in share)
    assert done == [(min(first + batch, total), total) for first in range(0, total, batch)]
    assert {i: row.square for i, row in sweep.rows.items()} == {i: i * i for i in range(total)}
    return sweep, worked


def test_every_problem_is_asked_once(tmp_path: Path) -> None:
    assert swept(None)[1] == [[0, 1, 2], [3, 4, 5], [6]]
    assert swept(tmp_path / "s.jsonl")[1] == [[0, 1, 2], [3, 4, 5], [6]]
    assert swept(tmp_path / "s.jsonl")[1] == []


def test_a_kill_at_any_byte_changes_nothing(tmp_path: Path) -> None:
    """A batch that is half there is made again as a whole, and no line of it is written twice."""
    path, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    swept(path)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        lines = max(whole[:length].count(b"\n") - 1, 0)
        first = 7 if lines == 7 else lines // 3 * 3
        assert [i for share in swept(cut)[1] for i in share] == [*range(first, 7)]
        assert cut.read_bytes() == whole, length


@pytest.mark.parametrize("which", [0, 1])
def test_processes_share_a_batch(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes each has half of a batch, both know all rows, and the first one writes."""
    other = [Square(index, index**2) for index in range(7)]

    def gather(own: list[Square]) -> list[list[Square]]:
        first = own[0].index // 4 * 4 if own else 4
        theirs = other[first + 2 : first + 4] if which == 0 else other[first : first + 2]
        return [own, theirs] if which == 0 else [theirs, own]

    def on_first(run: Callable[[], dict[int, Square]]) -> dict[int, Square]:
        return run() if which == 0 else {}

    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "index", lambda: which)
    monkeypatch.setattr(ranks, "gather", gather)
    monkeypatch.setattr(ranks, "on_first", on_first)
    path = tmp_path / "s.jsonl"
    sweep = ResumableBatches(path, Square, {}, 7, 2)
    shares = []
    for share in sweep.shares():
        shares.append([*share])
        sweep.store(other[index] for index in share)
    assert shares == ([[0, 1], [4, 5]] if which == 0 else [[2, 3], [6]])
    assert [*sweep.rows.values()] == other
    assert path.exists() == (which == 0)
