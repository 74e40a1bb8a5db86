"""Everything is on the policy's device, on a machine without a GPU: see `tests/simulated/device.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulated.device import compiler

FOLDER = Path(__file__).parents[1] / "simulated"


@pytest.mark.skipif(compiler() is None, reason="the simulated device needs a C++ compiler (g++, or $CXX)")
def test_device_discipline() -> None:
    """A process of its own, because a second kind of device cannot be taken back."""
    files = [str(FOLDER / name) for name in ("check_rules.py", "check_library.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
