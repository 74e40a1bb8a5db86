"""Host memory stays flat over a long run."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from selfverify.core.config import SamplingConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy

BOUND_MB = 10
"""Growth allowed over 400 steps, 25 KiB a step: less than the pixels of a step's two images (36 KiB), so that
anything that keeps its steps' tensors is over it."""


def resident_mb() -> float:
    """What is in use: garbage is collected and free memory given back first, which else comes and goes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """As a program: train on fresh images and print the resident memory now and then."""
    steps, output = sys.argv[1:]
    torch.set_num_threads(1)

    def on_step(step: int, steps: int, metrics: dict[str, float], timing: dict[str, float]) -> None:
        if step % 50 == 0:
            print(step, f"{resident_mb():.1f}", flush=True)

    learn(
        # Fresh images fill both caches before step 100.
        Policy.load("builtin:digits", vision_cache_mb=1, pixel_cache_mb=1),
        make_task("digits-pick"),
        make_method("adpo", kl=0.01),
        TrainerConfig(
            steps=int(steps), groups_per_step=2, loss={"drop_zero_advantage": False}, checkpoint={"every": 50}
        ),
        SamplingConfig(group_size=4, max_new_tokens=40),
        output=output,
        on_step=on_step,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and trims glibc's heap")
def test_memory_stays_flat_over_five_hundred_steps(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, __file__, "500", str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        timeout=1700,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    resident = {int(step): float(mb) for step, mb in (line.split() for line in ran.stdout.splitlines())}
    print(resident)
    assert list(resident) == list(range(50, 501, 50))
    assert max(resident[step] for step in range(150, 501, 50)) - resident[100] < BOUND_MB


if __name__ == "__main__":
    main()
