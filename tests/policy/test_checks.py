"""What learns is the policy that sampled: the check of gradients, and layers that draw or keep nothing."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.policy.conftest import noise_image
from torch import Tensor, nn
from torch.nn import functional as F

from selfverify.core.problem import Problem
from selfverify.policy import shared_attention
from selfverify.policy.checks import gradients_agree
from selfverify.policy.flash import CpuFlash, Grads
from selfverify.policy.loading import draw_nothing
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy

TOKENS = [[70, 71, 72, 73, 74], [75, 76, 77]]


def agrees(policy: Policy, problem: Problem, tokens: Any = TOKENS) -> bool:
    """What the check says of one problem's prompt."""
    policy.model.eval()
    return gradients_agree(policy.forward, policy.head, policy.encode([problem])[0], policy.stack([tokens]))


def test_right_gradients_pass_and_nothing_is_left_behind(policy: Policy, problems: list[Problem]) -> None:
    """Also of an image in a continuation; neither a gradient nor a hook nor a drawn number stays."""
    image = policy.encoder.image(noise_image(3), "shown")
    shown = policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
    seen = [Continuation([70, *shown, 71, 72], [image]), Continuation([73, 74])]
    state, before = torch.get_rng_state(), policy.fingerprint()
    policy.model.zero_grad()
    for problem, tokens in [*((problem, TOKENS) for problem in problems), (problems[0], seen)]:
        assert agrees(policy, problem, tokens) is True
    assert all(p.grad is None for p in policy.model.parameters())
    assert not policy.model.get_input_embeddings()._forward_hooks
    assert torch.equal(torch.get_rng_state(), state) and policy.fingerprint() == before


class Flawed(CpuFlash):
    """The CPU's kernels with a backward pass that spoils a gradient of the prompt's or the own part."""

    which, factor, own = 0, 2.0, False

    def backward(self, part: Any, grad: Any, out: Any, log: Any, rest: Any) -> Grads:
        found = list(super().backward(part, grad, out, log, rest))
        if bool(part.own) == self.own:
            found[self.which] = found[self.which] * self.factor
        return found[0], found[1], found[2]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["queries", "keys", "values"])
@pytest.mark.parametrize(("factor", "own"), [(2.0, False), (float("nan"), False), (float("nan"), True)])
def test_wrong_gradients_are_noticed(
    policy: Policy,
    problems: list[Problem],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    which: int,
    factor: float,
    own: bool,
) -> None:
    flawed = Flawed()
    flawed.which, flawed.factor, flawed.own = which, factor, own
    monkeypatch.setattr(shared_attention, "flash_for", lambda query: flawed)
    assert agrees(policy, problems[0]) is False
    assert "qwen2_5_vl" in caplog.text and "gradients" in caplog.text


def test_a_policy_shares_no_more_where_gradients_are_wrong(
    load_policy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = load_policy()
    policy.check_gradients()
    assert policy.shares_prefix is True and not caplog.text
    monkeypatch.setattr(shared_attention, "flash_for", lambda query: Flawed())
    policy.check_gradients()
    assert policy.shares_prefix is False and "gradients" in caplog.text
    assert policy.frozen_copy().shares_prefix is False


# --- layers that do otherwise while they learn --------------------------------------------------------------


class Asking(nn.Module):
    """A layer that asks its settings at every call, as Falcon's do."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_dropout=0.5, model_type="asking")

    def forward(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.config.hidden_dropout, self.training)


@pytest.mark.parametrize(
    "layer", [Asking(), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.InstanceNorm1d(6, track_running_stats=True)]
)
def test_a_layer_gives_the_same_while_it_learns(layer: nn.Module) -> None:
    """Also in a copy, such as a reference; and what it has kept of earlier batches stays."""
    model = nn.Sequential(nn.Identity(), layer)
    draw_nothing(model)
    values = 3 + torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    expected = model.eval()(values)
    before = copy.deepcopy(model.state_dict())
    for learns in (model, copy.deepcopy(model)):
        assert torch.equal(learns.train()(values), expected)
        after = learns.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
