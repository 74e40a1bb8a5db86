"""`benchmarks/vision_windows.py`: both sides compute the same, ours in a call a layer and size of windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest


def test_both_sides_run(benchmark: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    benchmark("vision_windows").main(["--heads", "1", "--layers", "1", "--repeats", "1", "--learn"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found["calls"].values()) == [[1, 64], [4, 72], [1, 64]]
    assert all(ratio > 0 for ratio in found["faster"].values())
