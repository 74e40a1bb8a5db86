"""Invariant 5: a run that is killed and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from killed_runs import begin, finish_killed, rows, same_figures, same_weights, train
from selfverify.core.config import SamplingConfig
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny


def run(steps: int, output: Path, model: Path, lora: AdapterConfig | None = None) -> None:
    config = TrainerConfig(
        steps=steps,
        groups_per_step=3,
        optim={"learning_rate": 1e-3, "schedule": "constant" if lora else "cosine", "warmup": 1},
        loss={"drop_zero_advantage": False},
        batch={"updates_per_rollout": 2, "micro_batch_groups": 2},
        checkpoint={"every": 3, "keep_last": 2},
    )
    # Random weights earn nothing, of which an adapter would learn nothing.
    method, sampling = make_method("sft" if lora else "adpo"), SamplingConfig(group_size=4, max_new_tokens=8)
    policy = Policy.load(str(model), lora=lora)
    train(policy, make_task("digits-pick"), method, config, sampling, output, resume=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "start", seed=1, hidden=96, layers=2)


def test_interrupted_and_killed_at_random_moments(model: Path, tmp_path: Path, one_thread: None) -> None:
    """Ctrl-C lets the step end and writes a checkpoint; SIGKILL comes between steps or inside them."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(6, whole, model)
    process, said = begin(run, 6, broken, model)
    next(line for line in said if line.startswith("step"))
    os.kill(process.pid, signal.SIGINT)
    said.read()
    process.join()
    assert process.exitcode != 0
    assert (broken / "checkpoints" / f"checkpoint-{len(rows(broken)):06d}").is_dir()
    hit = finish_killed(run, 6, 2, broken, model, pause_s=0.15)
    assert hit, "the run always ended before it could be killed"
    assert same_weights(whole, broken) and same_figures(whole, broken)


def test_a_seed_decides_what_an_adapter_drops(model: Path, tmp_path: Path) -> None:
    """Not torch's generators, where they stand when a run begins or goes on."""
    whole, parts, lora = tmp_path / "whole", tmp_path / "parts", AdapterConfig(rank=2, dropout=0.3)
    run(2, whole, model, lora)
    for steps in (1, 2):
        torch.manual_seed(steps)
        run(steps, parts, model, lora)
    assert same_figures(whole, parts)
    one, other = (load_file(output / "model" / "adapter_model.safetensors") for output in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one | other)
