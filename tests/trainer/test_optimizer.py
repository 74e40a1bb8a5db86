"""Optimizers: which a run gets, masters, and channels that share one, take turns, or have one each."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from killed_runs import rows, same_weights
from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import OptimConfig, TrainerConfig
from selfverify.core.trajectory import Alternatives
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from selfverify.trainer.batch import TokenStreams, select
from selfverify.trainer.checkpoint import CheckpointManager
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.optim import (
    ChannelOptimizer,
    channel_names,
    chosen_alternatives,
    learning_rate_factor,
    make_optimizer,
    only,
)
from selfverify.trainer.parallel import Parallel, make_accelerator
from updating import trainer_config


def one_weight(**settings: object) -> tuple[nn.Parameter, ChannelOptimizer]:
    """A weight of 1 with AdamW of rate 0.1 and decay rates 0.5, whose eps is too small to be seen."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    config = trainer_config(
        optim__learning_rate=0.1, optim__betas=(0.5, 0.5), optim__channels="separate", **settings
    )
    optimizer = make_optimizer(config.optim, [("w", weight)])
    assert isinstance(optimizer, ChannelOptimizer)
    return weight, optimizer


def step(
    weight: nn.Parameter,
    optimizer: ChannelOptimizer,
    gradient: float,
    channel: str,
    rate: float = 1.0,
    sharers: int = 1,
) -> float:
    weight.grad = torch.tensor([gradient], dtype=weight.dtype)
    optimizer.take_turn(channel, rate, sharers)
    optimizer.step()
    return weight.item()


def test_each_channel_has_moments_of_its_own() -> None:
    """The first step of AdamW is the rate, whatever the gradient's size: m / sqrt(v) = g / |g|.

    Second step of `answer` with gradients 1 and then -2: m = (.5 * 1 + -2) / 2 / .75 = -1, v = (.5 * 1 + 4)
    / 2 / .75 = 3. The large gradients of `score` between the two are not in it.
    """
    weight, optimizer = one_weight()
    assert step(weight, optimizer, 1.0, "answer") == pytest.approx(0.9)
    assert step(weight, optimizer, 500.0, "score") == pytest.approx(0.8)
    assert step(weight, optimizer, -2.0, "answer") == pytest.approx(0.8 + 0.1 / math.sqrt(3))
    assert step(weight, optimizer, 500.0, "score") == pytest.approx(0.7 + 0.1 / math.sqrt(3))
    assert float(optimizer.state[weight]["answer/step"]) == float(optimizer.state[weight]["score/step"]) == 2


def test_rates_and_weight_decay() -> None:
    """A rate is a factor on the step. Two channels that step together decay a weight of 1 by half each."""
    weight, optimizer = one_weight()
    assert step(weight, optimizer, 1.0, "score", 0.5) == pytest.approx(0.95)
    weight, optimizer = one_weight(optim__weight_decay=1.0)
    assert step(weight, optimizer, 1.0, "answer", 1.0, 2) == pytest.approx(1 - 0.1 / 2 - 0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model"), seed=1, hidden=96, layers=2)


def made_streams(policy: Policy, count: int = 3) -> list[TokenStreams]:
    """Groups of ADPO whose channels both teach: rewards are drawn, since random weights earn none."""
    task, method = make_task("digits-pick"), make_method("adpo", verification_credit="normalised", kl=0.0)
    problems = [task.problem("train", 0, i) for i in range(count)]
    sampling = SamplingConfig(group_size=4, max_new_tokens=12)
    rollout = method.rollout(policy, task, problems, [*range(count)], sampling)
    valid = [torch.ones(4, dtype=torch.bool)] * count
    credits = [method.credit(g, v) for g, v in zip(rollout.groups, valid, strict=True)]
    groups, _ = select(rollout, credits, False)
    generator = torch.Generator().manual_seed(0)
    for group in groups:
        # Half of each response is the answer's, the other half the score's.
        half = torch.arange(group.channel_gr.shape[1]) >= group.channel_gr.shape[1] // 2
        trained_gr = group.channel_gr >= 0
        group.channel_gr = torch.where(trained_gr, half.long().expand_as(trained_gr), -1)
        group.advantage_gr = torch.randn(trained_gr.shape, generator=generator) * trained_gr
        group.weight_gr = trained_gr.float()
    return groups


def gradients(policy: Policy, groups: list[TokenStreams], **how: object) -> tuple[Parallel, UpdateMetrics]:
    config = trainer_config(optim__channels="separate", batch__micro_batch_groups=2)
    optimizer = make_optimizer(config.optim, policy.model.named_parameters())
    parallel = Parallel(make_accelerator(policy), policy, None, optimizer, 1.0)
    totals = UpdateMetrics()
    policy.model.zero_grad()
    LossComputer(parallel, config, "surrogate").gradient(groups, micro_batches(groups, 2), totals, **how)  # type: ignore[arg-type]
    return parallel, totals


def copied(parameters: object) -> list[torch.Tensor]:
    return [p.grad.clone() for p in parameters if p.grad is not None]  # type: ignore[attr-defined]


def test_channels_gradients_add_up_to_the_joint_one(folder: Path, in_float64: Any) -> None:
    """By one forward pass with two backward passes, and by a pass for each channel."""
    policy = in_float64(Policy.load(str(folder), device="cpu"))
    groups = made_streams(policy)
    assert channel_names(groups) == ["answer", "score"]
    _, jointly = gradients(policy, groups)
    joint = copied(policy.model.parameters())
    parallel, together = gradients(policy, groups, apart=["answer", "score"])
    apart = {name: [g for g in kept if g is not None] for name, kept in parallel.apart.kept.items()}
    largest = max(float(whole.abs().max()) for whole in joint)
    for number, whole in enumerate(joint):
        assert_close(sum(kept[number] for kept in apart.values()), whole, largest)
    for name, kept in apart.items():
        gradients(policy, groups, channel=name)
        for one, alone in zip(kept, copied(policy.model.parameters()), strict=True):
            assert_close(one, alone, largest)
    assert together.sums["tokens"] == jointly.sums["tokens"]
    assert_close(together.sums["loss"], jointly.sums["loss"])
    norms = {name: math.sqrt(sum(float(g.square().sum()) for g in kept)) for name, kept in apart.items()}
    assert parallel.apart_norms() == pytest.approx(norms)
    assert not parallel.apart.kept and all(p.grad is None for p in policy.model.parameters())


def test_choices_belong_to_their_channel(folder: Path) -> None:
    groups = made_streams(Policy.load(str(folder), device="cpu"), 1)
    [group] = groups
    row, place = (group.channel_gr == 1).nonzero()[0].tolist()
    index = torch.tensor([row]), torch.tensor([place])
    values = torch.ones(1, 2)
    group = replace(
        group, choices=Alternatives(*index, values.long(), values / 2, values), choice_weight_m=torch.ones(1)
    )
    answer, score = only(group, "answer"), only(group, "score")
    assert answer.choices is None and score.choices is group.choices
    assert chosen_alternatives([group], [answer]).tolist() == [False]
    assert chosen_alternatives([group], [score]).tolist() == [True]
    assert bool((answer.channel_gr == 1).any()) is False and bool((score.channel_gr == 0).any()) is False


def run(
    folder: Path, output: Path, steps: int = 3, dtype: str = "float32", resume: bool = False, **settings: Any
) -> Path:
    config = trainer_config(
        steps=steps,
        groups_per_step=2,
        optim__learning_rate=1e-3,
        checkpoint__every=1,
        loss__drop_zero_advantage=False,
        **settings,
    )
    policy = Policy.load(str(folder), device="cpu", dtype=dtype)
    sampling = SamplingConfig(group_size=4, max_new_tokens=8)
    learn(
        policy, make_task("digits-pick"), make_method("sft"), config, sampling,
        output=output, seed=3, resume=resume, save_as="model",
    )  # fmt: skip
    return output


ANSWER, SCORE = {"grad_norm/answer"}, {"grad_norm/score"}


@pytest.mark.parametrize(
    ("channels", "dtype", "measured"),
    [
        ("alternate", "float32", [ANSWER, SCORE, ANSWER]),
        ("separate", "bfloat16", [ANSWER | SCORE] * 3),
        ("joint", "bfloat16", [set(), ANSWER | SCORE, set()]),
    ],
)
def test_resumed_equals_unbroken(
    folder: Path, tmp_path: Path, channels: str, dtype: str, measured: list[set[str]]
) -> None:
    """Moments and masters of all channels come back bit for bit, and turns go on from step to step.

    Each channel's norm is logged where it is known; to measure it changes nothing that is learnt.
    """
    settings: dict[str, Any] = {"dtype": dtype, "optim__channels": channels}
    measure = {"log__channels_every": 2} if channels == "joint" else {}
    whole = run(folder, tmp_path / "whole", **settings)
    run(folder, tmp_path / "parts", 1, **settings, **measure)
    parts = run(folder, tmp_path / "parts", resume=True, **settings, **measure)
    assert same_weights(whole, parts)
    told = rows(parts)
    assert [{key for key in row if key.startswith("grad_norm/")} for row in told] == measured
    assert [{key: row[key] for key in one} for row, one in zip(told, rows(whole), strict=True)] == rows(whole)
    assert told[0]["tokens/trained"] > 0
    for row in (row for row, names in zip(told, measured, strict=True) if len(names) == 2):
        norms = row["grad_norm/answer"], row["grad_norm/score"]
        if channels == "separate":
            assert row["grad_norm"] == pytest.approx(math.hypot(*norms), rel=1e-4)
        else:  # the joint gradient is the sum of the channels'
            assert row["grad_norm"] <= sum(norms) + 1e-4
    kept = [load_file(o / "checkpoints/checkpoint-000003/optimizer.safetensors") for o in (whole, parts)]
    moments, others = ({n: t for n, t in each.items() if n.startswith("optimizer.")} for each in kept)
    assert moments.keys() == others.keys()
    assert all(torch.equal(moments[name], others[name]) for name in moments)
    kinds = {name.rsplit(".", 1)[-1] for name in moments}
    assert ({"exp_avg"} if channels == "joint" else {"answer/exp_avg", "score/exp_avg_sq"}) <= kinds
    assert ("master" in kinds) == (dtype != "float32")
    if channels == "separate":
        with pytest.raises(ConfigError, match=r"was written with learner\.optim\.channels=separate"):
            run(folder, parts, 4, dtype, resume=True)


# --- which optimizer a run gets, its state, and masters -----------------------------------------------------


SCHEDULER = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 2))
    layers[1].bias.requires_grad_(False)
    return layers


def stepped(layers: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
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
    stepped(whole, optimizer, 2)
    assert optimizer.state[whole[0].weight]["state1"].dtype == torch.uint8
    saved = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    manager = CheckpointManager(tmp_path, keep_last=1)
    path = manager.save(2, lambda folder: None, optimizer, SCHEDULER, {})
    stepped(whole, optimizer, 2)

    again = model()
    again.load_state_dict(saved)
    resumed = make_optimizer(config, again.named_parameters())
    manager.load(path, resumed, SCHEDULER)
    stepped(again, resumed, 2)
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


def train_on(
    parameters: nn.ParameterDict, optimizer: torch.optim.Optimizer, gradients: list[list[torch.Tensor]]
) -> None:
    for stepped in gradients:
        for parameter, gradient in zip(parameters.values(), stepped, strict=True):
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
        train_on(parameters, optimizer, gradients)
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
    config = OptimConfig(learning_rate=1e-2)
    gradients = recorded(2, [*SHAPES.values()])
    bare = weights(torch.bfloat16)
    old = make_optimizer(config, bare.named_parameters(), False)
    train_on(bare, old, gradients[:1])
    new = make_optimizer(config, bare.named_parameters(), True)
    new.load_state_dict(old.state_dict())
    assert isinstance(new, ChannelOptimizer)
    before = {name: p.detach().clone() for name, p in bare.items()}
    for name, parameter in bare.items():
        state = new.state[parameter]
        assert torch.equal(state["master"], before[name].float())
        assert state["exp_avg"].dtype == torch.float32 and float(state["step"]) == 1
    train_on(bare, new, gradients[1:])
    assert all(float(new.state[p]["step"]) == 2 for p in bare.values())


def test_large_weights_are_stepped_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts only save memory."""
    gradients = recorded(3, [*SHAPES.values()])
    config = OptimConfig(learning_rate=1e-3)
    results = []
    for chunk in (2**26, 1000):
        monkeypatch.setattr("selfverify.trainer.optim.CHUNK", chunk)
        made = weights(torch.bfloat16)
        train_on(made, make_optimizer(config, made.named_parameters(), True), gradients)
        results.append(flat(made.values()))
    assert torch.equal(*results)
