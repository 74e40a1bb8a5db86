"""Which optimizer a run gets, its state in a checkpoint, and float32 masters of low-precision weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import OptimConfig, TrainerConfig
from selfverify.trainer.checkpoint import CheckpointManager
from selfverify.trainer.optim import ChannelOptimizer, learning_rate_factor, make_optimizer
from tables import yaml_cases

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
    config = OptimConfig(learning_rate=0.5, weight_decay=0.25, betas=(0.5, 0.75))
    optimizer = make_optimizer(config, model().named_parameters())
    [group] = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.25, (0.5, 0.75))
    assert group["param_names"] == ["0.weight", "0.bias", "1.weight"]


@yaml_cases
def test_the_rate_rises_and_then_follows_its_schedule(schedule: str, factors: dict[int, float]) -> None:
    factor = learning_rate_factor(
        TrainerConfig.model_validate({"steps": 12, "optim": {"warmup": 2, "schedule": schedule}})
    )
    found = {update: factor(update) for update in (0, 1, *factors, 13)}
    assert found == pytest.approx({0: 0.5, 1: 1, **factors, 13: factors[12]})


@pytest.mark.skipif(HAS_BITSANDBYTES, reason="bitsandbytes is installed")
def test_eight_bits_need_bitsandbytes() -> None:
    with pytest.raises(ConfigError, match="selfverify\\[8bit\\]"):
        make_optimizer(OptimConfig(name="adamw_8bit"), model().named_parameters())


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="bitsandbytes is not installed")
def test_eight_bits_learn_and_resume_bit_by_bit(tmp_path: Path) -> None:
    config = OptimConfig(name="adamw_8bit", learning_rate=1e-2)
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


# --- masters ------------------------------------------------------------------------------------------------


STEPS, RATE = 300, 1e-6


def recorded(steps: int, shapes: list[tuple[int, ...]]) -> list[list[torch.Tensor]]:
    """Gradients with a drift and noise, as those of a training; the same for every optimizer."""
    generator = torch.Generator().manual_seed(0)
    drift = [torch.randn(shape, generator=generator) for shape in shapes]
    return [
        [(0.5 * d + torch.randn(d.shape, generator=generator)).bfloat16().float() for d in drift]
        for _ in range(steps)
    ]


def weights(dtype: torch.dtype) -> nn.ParameterDict:
    generator = torch.Generator().manual_seed(1)
    values = {
        name: (0.02 * torch.randn(shape, generator=generator)).bfloat16() for name, shape in SHAPES.items()
    }
    return nn.ParameterDict({name: nn.Parameter(value.to(dtype)) for name, value in values.items()})


SHAPES = {"a": (64, 128), "b": (128,), "c": (32, 64)}


def train(
    parameters: nn.ParameterDict, optimizer: torch.optim.Optimizer, gradients: list[list[torch.Tensor]]
) -> None:
    for step in gradients:
        for parameter, gradient in zip(parameters.values(), step, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad()


def flat(tensors: object) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])  # type: ignore[attr-defined]


def test_masters_move_as_float32_does_and_bare_weights_do_not() -> None:
    gradients = recorded(STEPS, [*SHAPES.values()])
    config = OptimConfig(learning_rate=RATE)
    start = flat(weights(torch.float32).values())
    exact, master, bare = (weights(d) for d in (torch.float32, torch.bfloat16, torch.bfloat16))
    moved = {}
    optimizers = {}
    for name, parameters, masters in (
        ("exact", exact, True),
        ("master", master, True),
        ("bare", bare, False),
    ):
        optimizers[name] = optimizer = make_optimizer(config, parameters.named_parameters(), masters)
        train(parameters, optimizer, gradients)
        moved[name] = flat(parameters.values()) - start
    assert type(optimizers["exact"]) is torch.optim.AdamW
    moved["master"] = flat(optimizers["master"].state[p]["master"] for p in master.values()) - start
    distance = {name: float(change.norm()) for name, change in moved.items()}
    assert distance["master"] == pytest.approx(distance["exact"], rel=0.02)
    assert float(torch.cosine_similarity(moved["master"], moved["exact"], dim=0)) > 0.99
    assert float((moved["bare"] != 0).double().mean()) < 0.1
    # What computes is the master, rounded.
    for parameter in master.values():
        assert torch.equal(parameter, optimizers["master"].state[parameter]["master"].bfloat16())


def test_a_run_without_masters_can_be_gone_on_with() -> None:
    config = OptimConfig(learning_rate=1e-2)
    gradients = recorded(2, [*SHAPES.values()])
    bare = weights(torch.bfloat16)
    old = make_optimizer(config, bare.named_parameters(), False)
    train(bare, old, gradients[:1])
    new = make_optimizer(config, bare.named_parameters(), True)
    new.load_state_dict(old.state_dict())
    assert isinstance(new, ChannelOptimizer)
    before = {name: p.detach().clone() for name, p in bare.items()}
    for name, parameter in bare.items():
        state = new.state[parameter]
        assert torch.equal(state["master"], before[name].float())
        assert state["exp_avg"].dtype == torch.float32 and float(state["step"]) == 1
    train(bare, new, gradients[1:])
    assert all(float(new.state[p]["step"]) == 2 for p in bare.values())


def test_large_weights_are_stepped_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts only save memory."""
    gradients = recorded(3, [*SHAPES.values()])
    config = OptimConfig(learning_rate=1e-3)
    results = []
    for chunk in (2**26, 1000):
        monkeypatch.setattr("selfverify.trainer.optim.CHUNK", chunk)
        made = weights(torch.bfloat16)
        train(made, make_optimizer(config, made.named_parameters(), True), gradients)
        results.append(flat(made.values()))
    assert torch.equal(*results)
