"""Float32 masters: what weights in low precision lose without them, and that a checkpoint keeps them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from selfverify.core.trainer_config import TrainerConfig
from selfverify.trainer.optim import ChannelOptimizer, make_optimizer

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
    config = TrainerConfig(steps=1, learning_rate=RATE)
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
    assert type(optimizers["bare"]) is torch.optim.AdamW
    moved["master"] = flat(optimizers["master"].state[p]["master"] for p in master.values()) - start
    distance = {name: float(change.norm()) for name, change in moved.items()}
    assert distance["master"] == pytest.approx(distance["exact"], rel=0.02)
    assert float(torch.cosine_similarity(moved["master"], moved["exact"], dim=0)) > 0.99
    assert float((moved["bare"] != 0).double().mean()) < 0.1
    # What computes is the master, rounded.
    for parameter in master.values():
        assert torch.equal(parameter, optimizers["master"].state[parameter]["master"].bfloat16())


def test_a_run_without_masters_can_be_gone_on_with() -> None:
    config = TrainerConfig(steps=1, learning_rate=1e-2)
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
    config = TrainerConfig(steps=1, learning_rate=1e-3)
    results = []
    for chunk in (2**26, 1000):
        monkeypatch.setattr("selfverify.trainer.optim.CHUNK", chunk)
        made = weights(torch.bfloat16)
        train(made, make_optimizer(config, made.named_parameters(), True), gradients)
        results.append(flat(made.values()))
    assert torch.equal(*results)
