"""What the last layer's feed-forward block is given. test_shared_prefix.py shows that results stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.policy.shared_attention import ReadOnly


def watch(policy: Policy, layer: int) -> list[int]:
    """Fills with the number of tokens per row that a layer's feed-forward block gets."""
    seen: list[int] = []
    policy._check_head()  # looks at all tokens, once
    block = policy.loaded.family.backbone(policy.model).layers[layer].mlp
    block.gate_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    return seen


@pytest.mark.parametrize("checkpointing", [False, True])
def test_only_what_is_read(load_policy: Any, problems: list[Problem], checkpointing: bool) -> None:
    policy = load_policy(gradient_checkpointing=checkpointing)
    policy.shares_prefix = True
    policy.model.train()
    prompts = policy.encode(problems)
    first, last = watch(policy, 0), watch(policy, -1)
    policy.logprobs(prompts, [[[50, 51, 52], [53, 54, 55]]] * len(prompts)).sum().backward()
    own = 2 * (3 - 1)  # nothing is predicted from the third token
    calls = 1 + checkpointing
    assert first == [max(len(p.ids) for p in prompts) + own] * calls
    assert last == [1 + own] * calls


def test_a_copy_has_hooks_of_its_own(load_policy: Any) -> None:
    policy = load_policy()
    copied = policy.frozen_copy()

    def hooks(p: Policy) -> ReadOnly:
        block = p.loaded.family.backbone(p.model).layers[-1].mlp
        (hook,) = block._forward_hooks.values()
        return hook.__self__

    assert isinstance(hooks(copied), ReadOnly)
    assert hooks(copied) is not hooks(policy)


class Experts(nn.Module):
    """A block that hands out its routing beside the hidden states."""

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, str]:
        """Doubles."""
        return 2 * hidden, "routing"


def test_a_block_that_returns_a_tuple() -> None:
    from selfverify.policy.packing import SharedLayout

    hooks, block = ReadOnly(), Experts()
    block.register_forward_pre_hook(hooks.narrow)
    block.register_forward_hook(hooks.widen)
    layout = SharedLayout("packed", torch.tensor([2, 3]), 3, 2)
    hooks.enter(nn.Module(), (), {"shared": layout})
    hidden = torch.arange(10.0).view(2, 5, 1) + 1
    out, routing = block(hidden)
    assert routing == "routing"
    assert out.squeeze(-1).tolist() == [[0, 4, 0, 8, 10], [0, 0, 16, 18, 20]]
