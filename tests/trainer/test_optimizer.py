"""Which optimizer a run gets, and that its state goes through a checkpoint."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.trainer.checkpoint import CheckpointManager
from selfverify.trainer.optim import learning_rate_factor, make_optimizer

SCHEDULER = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 2))
    layers[1].bias.requires_grad_(False)
    return layers


def step(layers: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    for _ in range(count):
        layers(torch.ones(4, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_settings_reach_adamw_and_frozen_weights_do_not() -> None:
    config = TrainerConfig(steps=1, learning_rate=0.5, weight_decay=0.25, betas=(0.5, 0.75))
    optimizer = make_optimizer(config, model().named_parameters())
    [group] = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.25, (0.5, 0.75))
    assert group["param_names"] == ["0.weight", "0.bias", "1.weight"]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", {2: 1, 7: 1, 12: 1}),
        ("linear", {2: 1, 7: 0.5, 12: 0}),
        ("cosine", {2: 1, 7: 0.5, 12: 0}),
        ("stable_decay", {2: 1, 7: 1, 10: 1, 11: 0.5, 12: 0}),
    ],
)
def test_the_rate_rises_and_then_follows_its_schedule(schedule: str, factors: dict[int, float]) -> None:
    factor = learning_rate_factor(
        TrainerConfig.model_validate({"steps": 12, "warmup_steps": 2, "schedule": schedule})
    )
    found = {update: factor(update) for update in (0, 1, *factors, 13)}
    assert found == pytest.approx({0: 0.5, 1: 1, **factors, 13: factors[12]})


@pytest.mark.skipif(HAS_BITSANDBYTES, reason="bitsandbytes is installed")
def test_eight_bits_need_bitsandbytes() -> None:
    with pytest.raises(ConfigError, match="selfverify\\[8bit\\]"):
        make_optimizer(TrainerConfig(steps=1, optimizer="adamw_8bit"), model().named_parameters())


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="bitsandbytes is not installed")
def test_eight_bits_learn_and_resume_bit_by_bit(tmp_path: Path) -> None:
    config = TrainerConfig(steps=1, optimizer="adamw_8bit", learning_rate=1e-2)
    whole, optimizer = model(), None
    optimizer = make_optimizer(config, whole.named_parameters())
    step(whole, optimizer, 2)
    assert optimizer.state[whole[0].weight]["state1"].dtype == torch.uint8
    saved = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    manager = CheckpointManager(tmp_path, keep_last=1)
    path = manager.save(2, lambda folder: None, optimizer, SCHEDULER, {})
    step(whole, optimizer, 2)

    again = model()
    again.load_state_dict(saved)
    resumed = make_optimizer(config, again.named_parameters())
    manager.load(path, resumed, SCHEDULER)
    step(again, resumed, 2)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
