"""Invariant 5: a run that is killed and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import killed_runs
from killed_runs import finish, same_figures, same_weights

SCRIPT = Path(__file__).with_name("resume_run.py")


def start(model: Path, output: Path, resume: bool) -> subprocess.Popen[str]:
    return killed_runs.start(SCRIPT, model, output, *(["resume"] if resume else []))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from selfverify.policy.tiny_models import write_tiny

    return write_tiny(tmp_path_factory.mktemp("model"), seed=1, hidden=96, layers=2)


@pytest.fixture(scope="module")
def unbroken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("unbroken")
    finish(start(model, output, resume=False))
    return output


def test_killed_at_random_moments(model: Path, unbroken: Path, tmp_path: Path) -> None:
    """SIGKILL at several moments: between steps, inside steps, and while a checkpoint is being written."""
    rng, killed = random.Random(0), 0
    for kill in range(3):
        process = start(model, tmp_path, resume=kill > 0)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("step"), process.communicate()[1][-2000:]
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed, "the run always ended before it could be killed"
    finish(start(model, tmp_path, resume=True))
    assert same_weights(unbroken, tmp_path)
    assert same_figures(unbroken, tmp_path)


def test_interrupted_by_ctrl_c(model: Path, unbroken: Path, tmp_path: Path) -> None:
    """Ctrl-C lets the step end, writes a checkpoint, and the run goes on from there."""
    process = start(model, tmp_path, resume=False)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert list((tmp_path / "checkpoints").glob("checkpoint-*"))
    finish(start(model, tmp_path, resume=True))
    assert same_weights(unbroken, tmp_path)


def test_a_seed_decides_what_an_adapter_drops(model: Path, tmp_path: Path) -> None:
    """In processes that have drawn nothing from torch's generators before."""
    outputs = [tmp_path / "one", tmp_path / "other"]
    for process in [killed_runs.start(SCRIPT, model, output, "dropout") for output in outputs]:
        finish(process)
    assert same_figures(*outputs)
    one, other = (load_file(output / "model" / "adapter_model.safetensors") for output in outputs)
    assert all(torch.equal(one[name], other[name]) for name in one | other)
