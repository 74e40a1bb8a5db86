"""Channels that share the optimizer, take turns, or have an optimizer each; worked by hand on one weight."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from killed_runs import rows, same_weights
from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Alternatives
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from selfverify.trainer.batch import TokenStreams, select
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.optim import (
    ChannelOptimizer,
    channel_names,
    chosen_alternatives,
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
