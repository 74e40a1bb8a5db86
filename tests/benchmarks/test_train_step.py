"""`benchmarks/train_step.py` with every family: TRL's losses and gradients are ours, or the program fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest

QWEN = ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"]
FAMILIES = [*QWEN, "idefics3", "smolvlm", "llava_onevision", "internvl", "gemma3"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_trl_agrees(
    family: str, benchmark: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    program = benchmark("train_step")
    assert set(program.FAMILIES) == set(FAMILIES)
    program.main(["--family", family, "--groups", "3", "--prompts", "60", "--repeats", "1", "--no-adpo"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["family"] == family and found["largest_gradient_difference"] < 1e-4
