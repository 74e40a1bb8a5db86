"""Host memory stays flat over a long run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("memory_run.py")

BOUND_MB = 10
"""Growth allowed over 400 steps, 25 KiB a step: less than the pixels of a step's two images (36 KiB), so that
anything that keeps its steps' tensors is over it."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and trims glibc's heap")
def test_memory_stays_flat_over_five_hundred_steps(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "500", str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parents[2] / "src")},
        timeout=1700,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    resident = {int(step): float(mb) for step, mb in (line.split() for line in ran.stdout.splitlines())}
    print(resident)
    assert list(resident) == list(range(50, 501, 50))
    assert max(resident[step] for step in range(150, 501, 50)) - resident[100] < BOUND_MB
