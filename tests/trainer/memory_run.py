"""Trains on fresh images and prints the resident memory now and then. Usage: memory_run.py STEPS OUTPUT"""

import ctypes
import gc
import os
import sys
from pathlib import Path

import torch

from selfverify.core.config import SamplingConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy


def resident_mb() -> float:
    """What is in use: garbage is collected and free memory given back first, which else comes and goes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
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
        TrainerConfig(steps=int(steps), groups_per_step=2, checkpoint_every=50, drop_zero_advantage=False),
        SamplingConfig(group_size=4, max_new_tokens=40),
        output=output,
        on_step=on_step,
    )


if __name__ == "__main__":
    main()
