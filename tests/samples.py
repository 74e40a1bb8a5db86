"""Stored samples for tests that look at figures only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selfverify.core.jsonl_store import open_journal
from selfverify.evaluation.samples import StoredProblem, StoredSample


def sample(problem: str, number: int, correct: bool, soft: float | None, **changes: Any) -> StoredSample:
    """Sample ``number`` of a problem, all three scores being ``soft``; ``changes`` are other fields."""
    values: dict[str, Any] = {
        "problem": problem, "sample": number, "text": "", "answer": str(number), "key": str(number),
        "correct": correct, "rewards": {"answer": float(correct), "format": 1.0},
        "scores": {"sampled": soft, "greedy": soft, "soft": soft}, "tokens": 3, "logprob": -1.0,
        "finish": "stop", "seed": 0,
    }  # fmt: skip
    return StoredSample(**values | changes)


def turned(pairs: str) -> list[StoredSample]:
    """A problem for each pair of ``"11 01"``: is the first turn right, is the second."""
    return [
        sample(f"p{n}", 0, second == "1", None, rewards={"correct_1": float(first)})
        for n, (first, second) in enumerate(pairs.split())
    ]


def write_samples(path: Path, settings: Mapping[str, Any], samples: Iterable[StoredSample]) -> None:
    """A new sample store with these samples, as `evaluate` writes it."""
    path.unlink(missing_ok=True)
    groups: dict[str, list[StoredSample]] = {}
    for one in samples:
        groups.setdefault(one.problem, []).append(one)
    rows = [StoredProblem(index, "", group) for index, group in enumerate(groups.values())]
    open_journal(path, StoredProblem, settings)[0].append(*map(asdict, rows))
