"""`benchmarks/agent_rollouts.py`: all sides hold the same conversations, or the program fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
import torch


@pytest.mark.slow
def test_all_sides_hold_the_same_conversations(
    benchmark: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trl", exc_type=ImportError)
    threads = torch.get_num_threads()
    small = ["--turns", "3", "--problems", "1", "--slow-problems", "1", "--delay", "0.02"]
    benchmark("agent_rollouts").main([*small, "--hidden", "32", "--layers", "1"])
    torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["turns_3"]["conversations"] == found["slow"]["conversations"] == 8
    # 8 conversations of 3 turns of 24 tokens, and 3 screens of 150 with the template's words around them.
    assert 8 * 3 * 174 < found["turns_3"]["tokens"] < 8 * 3 * 200
    assert min(found[name] for name in ("faster_than_prefill_3", "faster_than_trl_3")) > 0
