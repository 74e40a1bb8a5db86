"""Stored samples for tests that look at figures only."""

from __future__ import annotations

from typing import Any

from selfverify.evaluation.store import Sample


def sample(problem: str, number: int, correct: bool, soft: float | None, **changes: Any) -> Sample:
    """Sample ``number`` of a problem, all three scores being ``soft``; ``changes`` are other fields."""
    values: dict[str, Any] = {
        "problem": problem, "sample": number, "text": "", "answer": str(number), "key": str(number),
        "correct": correct, "rewards": {"answer": float(correct), "format": 1.0},
        "scores": {"sampled": soft, "greedy": soft, "soft": soft}, "tokens": 3, "logprob": -1.0,
        "finish": "stop", "seed": 0,
    }  # fmt: skip
    return Sample(**values | changes)
