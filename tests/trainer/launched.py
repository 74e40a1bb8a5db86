"""Training runs in one or several processes, launched as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from served import free_port

PROGRAM = Path(__file__).with_name("several.py")
FOLDERS = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]
WRAPPED = {"ddp": "DistributedDataParallel", "fsdp": "FSDPModuleRoot"}


Weights = dict[str, torch.Tensor]


def launch(way: str, *words: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, by torchrun if there are several processes."""
    command = [sys.executable]
    if way != "alone":
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(PROGRAM), way, *map(str, words)],
        env=environment, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip


def trained(output: Path, way: str, *settings: str, processes: int = 2) -> Weights:
    """The weights after a run that is launched by itself."""
    done = launch(way, output, *settings, processes=processes)
    assert done.returncode == 0, done.stderr[-3000:]
    return saved(output, way, processes)


def saved(output: Path, way: str, processes: int = 2) -> Weights:
    """The weights that a run has left, after a look at how it was run."""
    facts = json.loads((output / "way.json").read_text())
    if way != "alone":
        assert facts == {"count": processes, "root": WRAPPED[way]}
    [file] = (output / "model").glob("*.safetensors")
    return load_file(file)


def assert_same(ours: Weights, theirs: Weights, limit: float = 1e-10) -> None:
    assert ours.keys() == theirs.keys()
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert worst < limit
