"""Training with a real vLLM in the process: what it samples has the learner's probabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from with_vllm.conftest import CPU, PROGRAMS


def colocated(folder: Path, method: str, train_vision: bool) -> Any:
    """What `colocated.py` has found. vLLM cannot be started twice in one process."""
    output, root = folder / "found.json", PROGRAMS.parents[1]
    words = [str(PROGRAMS / "colocated.py"), str(output), method, str(train_vision)]
    path = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | CPU | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(output.read_text())


@pytest.mark.parametrize("train_vision", [False, True])
def test_four_steps(tmp_path: Path, train_vision: bool) -> None:
    rows = colocated(tmp_path, "adpo", train_vision)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(0 < row["mismatch/max"] < 2e-3 for row in rows)
    assert all(row["format/answer"] > 0.5 and row["grad_norm"] > 0 for row in rows)


def test_second_turns(tmp_path: Path) -> None:
    """vLLM goes on behind a request that it is shown in mid-conversation."""
    rows = colocated(tmp_path, "adapo", False)
    assert len(rows) == 4 and all(row["turns/missing"] < 1 for row in rows)
    # Behind a request it has never seen the policy gives image marks some mass, which vLLM may not.
    assert all(row["mismatch/max"] < 1e-2 for row in rows)


def test_an_adapter_is_merged_on_the_way(tmp_path: Path) -> None:
    """vLLM samples with what the adapter has learnt, and not with the model below it."""
    rows = colocated(tmp_path, "lora", False)
    assert len(rows) == 4 and all(0 < row["mismatch/max"] < 2e-3 for row in rows)
    assert rows[-1]["kl"] > 1e-3


def test_images_are_seen_by_the_newest_tower(tmp_path: Path) -> None:
    """And would not be, were vLLM not told to forget what it has seen with the one before."""
    first, moved, untold = colocated(tmp_path, "towers", True)
    assert max(first, moved) < 2e-3 and untold > 1e-2
