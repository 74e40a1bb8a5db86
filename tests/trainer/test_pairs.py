"""Learning from pairs, and what else a method may ask of the learner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trainer.test_slices import drifted
from torch.nn import functional as F

from rounding import assert_close, assert_gradients_close
from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Credit, Finish, Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import TokenStreams, make_streams, pair_weights
from selfverify.trainer.loss import LossComputer
from updating import update

BETA = 0.25
"""Exact in float32, in which coefficients are kept."""


def pair(policy: Policy, index: int, lengths: tuple[int, int], images: bool, weight: float = 1.0) -> Any:
    """A rejected and a chosen trajectory: an action, with an observation between its two parts."""
    task, noise = make_task("digits-pick"), torch.Generator().manual_seed(index)
    problem = task.problem("train", 0, index)
    [prompt] = policy.encode([problem])
    rows = []
    for length in lengths:
        words = torch.randint(10, 200, (length,), generator=noise).tolist()
        shown, pictures = [30, 31], []
        if images:
            pictures = list(task.problem("train", 0, index + 50).images)
            image = policy.encoder.image(pictures[0], "seen", True)
            shown = policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
        seen = Segment("observation", shown, author="environment", images=pictures)
        said = [Segment("action", words[:3]), seen, Segment("action", words[3:], finish=Finish.STOP)]
        rows.append(Trajectory(said))
    credits = [Credit("action", torch.tensor([-1.0, 1.0]), kl_coef=BETA, weight=weight)]
    streams = make_streams(prompt, Group(problem, rows), credits)
    streams.prepare_images(policy.encoder)
    return streams


def plain_loss(
    policy: Policy, reference: Policy, groups: list[TokenStreams], weights: list[float]
) -> torch.Tensor:
    """DPO's formula on log-probs of each trajectory by itself, from the forward that shares nothing."""
    losses = []
    for group, weight in zip(groups, weights, strict=True):
        gains = []
        for row, own in zip(group.continuations, group.trained_gr, strict=True):
            rows: list[list[Continuation]] = [[row]]
            new = policy.logprobs([group.prompt], rows)[0, 0]
            with torch.no_grad():
                ref = reference.logprobs([group.prompt], rows)[0, 0]
            gains.append((new - ref)[own[: len(new)]].sum())
        losses.append(-weight * F.logsigmoid(BETA * (gains[1] - gains[0])))
    return torch.stack(losses).mean()


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
@pytest.mark.parametrize("size", [1, 8])
def test_loss_and_gradient_are_those_of_the_formula(
    load_policy: Any, in_float64: Any, images: bool, size: int
) -> None:
    policy = in_float64(load_policy())
    policy.shares_prefix = True
    reference = drifted(policy, 0.97)
    groups = [
        pair(policy, 0, (9, 12), images),
        pair(policy, 1, (20, 4), images, 2.0),
        pair(policy, 2, (7, 7), images),
    ]
    settings = {"micro_batch_groups": size, "micro_batch_tokens": 10_000 if size > 1 else 10}
    totals = update(policy, groups, reference, objective="pairwise", **settings)
    ours = gradients(policy)
    policy.model.zero_grad()
    policy.shares_prefix = reference.shares_prefix = False
    expected = plain_loss(policy, reference, groups, [1.0, 2.0, 1.0])
    expected.backward()
    assert_close(totals.sums["loss"], expected)
    theirs = gradients(policy)
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-3
    assert_gradients_close(ours, theirs)
    logged = totals.metrics()
    assert totals.sums["pairs"] == 3 and 0 <= logged["pairs/accuracy"] <= 1
    assert logged["pairs/margin"] != 0


def test_a_pair_without_one_of_its_trajectories_takes_no_part(load_policy: Any, in_float64: Any) -> None:
    policy = in_float64(load_policy())
    whole, broken = pair(policy, 0, (9, 12), False, 3.0), pair(policy, 1, (20, 4), False)
    broken.channel_gr[0] = -1
    weights = pair_weights([whole, broken])
    assert weights[0].unique().tolist() == [0.0, 3.0] and not weights[1].any()
    reference = drifted(policy, 0.97)
    found = []
    for groups in ([whole, broken], [whole]):
        totals = update(policy, groups, reference, objective="pairwise")
        found.append((totals.sums["loss"], totals.sums["pairs"]))
    assert_close(found[0], found[1])
    assert found[0][1] == 1


def test_groups_that_are_no_pairs_are_errors(load_policy: Any) -> None:
    policy = load_policy()
    group = pair(policy, 0, (9, 12), False)
    with pytest.raises(ValueError, match="reference"):
        update(policy, [group], objective="pairwise")
    with pytest.raises(ValueError, match="a pair is one trajectory"):
        pair_weights([group.take([0])])
    group.advantage_gr[:] = 1.0
    with pytest.raises(ValueError, match=r"digits-pick/train/0/0: a pair is .*\[\[1.0\], \[1.0\]\]"):
        pair_weights([group])
    group.advantage_gr[0] = 0.5
    with pytest.raises(ValueError, match="a pair is one trajectory"):
        pair_weights([group])


def test_an_unknown_objective_is_an_error_that_names_it() -> None:
    alone: Any = type("Alone", (), {"policy": None})
    with pytest.raises(ConfigError, match="no objective 'surogate'; there are: surrogate, like"):
        LossComputer(alone, TrainerConfig(steps=1), "surogate")
    for name in ("surrogate", "likelihood", "pairwise"):
        LossComputer(alone, TrainerConfig(steps=1), name)


@pytest.mark.parametrize("settings", [{"channels": "separate"}, {"log_channels_every": 2}])
def test_pairs_have_no_channels_to_tell_apart(settings: dict[str, Any]) -> None:
    alone: Any = type("Alone", (), {"policy": None})
    with pytest.raises(ConfigError, match="pairwise compares whole trajectories"):
        LossComputer(alone, TrainerConfig(steps=1, **settings), "pairwise")
