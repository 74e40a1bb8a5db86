"""`benchmarks/looking.py`: both ways find the same, and no image is encoded twice, or it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
import torch


@pytest.mark.slow
def test_the_verifier_finds_the_same_on_kept_keys(
    benchmark: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    program = benchmark("looking")
    program.main(["--steps", "2", "--hidden", "32", "--layers", "1"])
    torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["gap"] < program.CLOSE and found["gap_crops"] < program.CLOSE
    # One question's image and, for two steps, one for each two of the group; 8 conversations see 3 each.
    assert (found["images_encoded"], found["images_shown"]) == (9, 24)
    assert min(found[name] for name in ("kept_faster", "verifier_faster")) > 0
