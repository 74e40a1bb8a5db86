"""Invariant 1: log-probs and gradients with a shared prompt equal transformers' plain forward."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.policy.conftest import Loaders, noise_image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import selfverify.policy.shared_attention as shared_attention
from rounding import assert_close, assert_gradients_close
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from tables import yaml_cases

Groups = list[list[Any]]


@pytest.fixture(scope="module")
def groups() -> Groups:
    """Continuations of different lengths, one of them empty, in groups of different size."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(6, 360, (count,), generator=generator).tolist()

    return [[tokens(5), tokens(1), tokens(9)], [tokens(4), [], tokens(2)], [tokens(7), tokens(3)]]


def observation(policy: Policy, image: Any, before: list[int], after: list[int]) -> Continuation:
    """A continuation in which the environment shows ``image``."""
    shown = policy.encoder.image(image, "observation")
    tokens = policy.tokenizer(f"<|vision_start|>{shown.text}<|vision_end|>", add_special_tokens=False)
    return Continuation([*before, *tokens["input_ids"], *after], [shown])


def raw_logprobs(raw: Any, problems: list[Problem], groups: Groups, temperature: float = 1.0) -> torch.Tensor:
    """``[B, G, R]`` from transformers, 0 at padding. Each entry is tokens or (tokens, images)."""
    pairs = [[c if isinstance(c, tuple) else (c, []) for c in group] for group in groups]
    longest = max(len(tokens) for group in pairs for tokens, _ in group)
    found = torch.zeros(len(pairs), max(map(len, pairs)), longest)
    for b, group in enumerate(pairs):
        for g, (tokens, images) in enumerate(group):
            found[b, g, : len(tokens)] = raw.logprobs(problems[b], tokens, images, temperature)
    return found


def weights_for(values: torch.Tensor) -> torch.Tensor:
    return torch.randn(values.shape, generator=torch.Generator().manual_seed(7))


def assert_same_gradients(ours: Any, theirs: Any, trainable: Callable[[str], bool]) -> None:
    """Gradients of every parameter that ``trainable`` names agree, and of no other there are any in ours."""
    found = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    assert found.keys() == {name for name, _ in ours.named_parameters() if trainable(name)}
    expected = dict(theirs.named_parameters())
    assert_gradients_close(found, {name: expected[name].grad for name in found})
    # Equal because both are 0 would prove nothing.
    assert sum(bool(gradient.abs().max() > 1e-3) for gradient in found.values()) > 10


def forced(policy: Policy, shared: bool) -> Policy:
    policy.shares_prefix = shared
    return policy


def test_image_in_a_continuation(loaders: Loaders, problems: list[Problem]) -> None:
    policy = forced(loaders.policy(), True)
    first, second = noise_image(5, 40, 16), noise_image(6, 16, 48)
    ours = [
        [observation(policy, first, [50, 51], [60, 61, 62]), [70, 71]],
        [[80], observation(policy, second, [52], [63, 64])],
        [observation(policy, second, [], [65, 66, 67]), observation(policy, first, [53, 54, 55], [])],
    ]
    shown = {ours[0][0].images[0].key: first, ours[1][1].images[0].key: second}
    theirs = [
        [(c.tokens, [shown[c.images[0].key]]) if isinstance(c, Continuation) else c for c in row]
        for row in ours
    ]
    expected = raw_logprobs(loaders.raw(), problems, theirs)
    for shared in (True, False):
        assert_close(forced(policy, shared).logprobs(policy.encode(problems), ours), expected)


@yaml_cases
def test_logprobs_and_gradients_equal_transformers(
    loaders: Loaders, problems: list[Problem], groups: Groups, settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    temperature = settings.pop("temperature", 1.0)
    policy = forced(loaders.policy(**settings), "shared_prefix" not in settings)
    policy.model.train()
    found = policy.logprobs(policy.encode(problems), groups, temperature=temperature)
    (found * weights_for(found)).sum().backward()
    yardstick = loaders.raw()
    expected = raw_logprobs(yardstick, problems, groups, temperature)
    assert_close(found, expected)
    (expected * weights_for(expected)).sum().backward()
    train_vision = settings.get("train_vision", False)
    assert_same_gradients(policy.model, yardstick.model, lambda n: train_vision or "visual" not in n)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gemma3_text", "granite", "cohere"])
def test_text_only_models(loaders: Loaders, groups: Groups, kind: str) -> None:
    texts = ["Add 3 and 4, then tell me what you think.", "Hi", "Pick 3 of the digits."]
    problems = [Problem(text, user_turn(text, images=0)) for text in texts]
    policy, yardstick = loaders.policy(kind), loaders.raw(kind)
    found = policy.logprobs(policy.encode(problems), groups)
    assert policy.shares_prefix is True
    expected = raw_logprobs(yardstick, problems, groups)
    assert_close(found, expected)
    (found * weights_for(found)).sum().backward()
    (expected * weights_for(expected)).sum().backward()
    assert_same_gradients(policy.model, yardstick.model, lambda name: True)


def test_needed_leaves_the_rest_zero(loaders: Loaders, problems: list[Problem], groups: Groups) -> None:
    policy = loaders.policy()
    prompts = policy.encode(problems)
    whole = policy.logprobs(prompts, groups)
    needed = torch.rand(whole.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    part = policy.logprobs(prompts, groups, needed=needed)
    assert_close(part, torch.where(needed, whole, 0.0))
    assert bool((part != 0).any()) and bool((part[needed] == 0).any())


def test_temperature_zero_is_read_as_one(policy: Policy, problems: list[Problem], groups: Groups) -> None:
    prompts = policy.encode(problems)
    assert torch.equal(policy.logprobs(prompts, groups, temperature=0.0), policy.logprobs(prompts, groups))


def test_nothing_to_score(policy: Policy, problems: list[Problem]) -> None:
    assert policy.logprobs(policy.encode(problems), [[[], []]] * 3).eq(0).all()
    assert policy.logprobs(policy.encode(problems), [[], [], []]).shape == (3, 0, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_autocast_is_close(load_policy: Any, problems: list[Problem], groups: Groups, shared: bool) -> None:
    policy = forced(load_policy(), shared)
    prompts = policy.encode(problems)
    exact = policy.logprobs(prompts, groups)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = policy.logprobs(prompts, groups)
        [samples, *_] = policy.sample(
            prompts, SamplingConfig(group_size=2, max_new_tokens=4), seeds=[0, 1, 2]
        )
        again = policy.logprobs(prompts[:1], [[sample.tokens for sample in samples]])
    assert 0 < (found - exact).abs().max() < 0.3
    for sample, row in zip(samples, again[0], strict=True):
        torch.testing.assert_close(torch.tensor(sample.logprobs), row.detach(), rtol=0, atol=0.3)


def test_bfloat16_is_close(load_policy: Any, make_raw: Any, problems: list[Problem], groups: Groups) -> None:
    policy = load_policy(dtype="bfloat16")
    found = policy.logprobs(policy.encode(problems), groups)
    assert policy.shares_prefix is True and policy.model.dtype == torch.bfloat16
    expected = raw_logprobs(make_raw(dtype=torch.bfloat16), problems, groups)
    exact = raw_logprobs(make_raw(), problems, groups)
    rounding = (expected - exact).abs().max()
    # As close to the exact values as transformers' own bfloat16, with some room for luck.
    assert (found - exact).abs().max() < 2 * rounding
    assert found.dtype == torch.float32


# --- the first-use check --------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "factor"), [("_packed", 1.05), ("_packed", float("nan")), ("_grow", 1.05)])
def test_broken_sharing_is_noticed_and_switched_off(
    load_policy: Any,
    raw: Any,
    problems: list[Problem],
    groups: Groups,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    factor: float,
) -> None:
    """A packed pass may be right where what grows token by token is not."""
    right = getattr(shared_attention, step)
    monkeypatch.setattr(
        shared_attention, step, lambda layer: right(replace(layer, scale=layer.scale * factor))
    )
    policy = load_policy()
    prompts = policy.encode(problems)
    with caplog.at_level(logging.WARNING, logger="selfverify.policy.checks"):
        if step == "_grow":
            policy.sample(prompts, SamplingConfig(group_size=1, max_new_tokens=1), seeds=[0, 0, 0])
        found = policy.logprobs(prompts, groups)
    assert policy.shares_prefix is False
    assert "qwen2_5_vl" in caplog.text and "sharing is off" in caplog.text
    assert_close(found, raw_logprobs(raw, problems, groups))


def test_a_layer_that_loses_the_layout_raises(load_policy: Any, problems: list[Problem]) -> None:
    """It would see all that stands in the row, future tokens and other samples included."""
    policy = forced(load_policy(), True)
    layer = policy.loaded.family.backbone(policy.model).layers[0].self_attn

    def forget(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name != "shared"}

    layer.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(shared_attention.SharingError, match="how rows are laid out"):
        policy.logprobs(policy.encode(problems), [[[7, 8]]] * 3)


def test_continuations_of_one_token(loaders: Loaders, problems: list[Problem]) -> None:
    """Then no continuation token is forwarded at all: the prompt predicts them."""
    policy, tokens = forced(loaders.policy(), True), [[[7], [9]], [[8], [10]]]
    found = policy.logprobs(policy.encode(problems[:2]), tokens)
    assert_close(found, raw_logprobs(loaders.raw(), problems[:2], tokens))


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


def test_shards_in_mixed_precision_share(load_policy: Any, problems: list[Problem]) -> None:
    """FSDP casts what modules are given, and copies every dataclass on the way."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        policy = forced(load_policy(), True)
        whole = policy.logprobs(policy.encode(problems), [[[7, 8], [9]]] * 3).detach()
        plan: Any = {"mesh": init_device_mesh("cpu", (1,)), "mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
        for layer in policy.loaded.family.backbone(policy.model).layers:
            fully_shard(layer, **plan)
        fully_shard(policy.running.root, **plan)
        found = policy.logprobs(policy.encode(problems), [[[7, 8], [9]]] * 3)
        sampled = policy.sample(policy.encode(problems), SamplingConfig(max_new_tokens=3), seeds=[0, 1, 2])
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(found.float(), whole, atol=0.5, rtol=0.1)
    assert policy.shares_prefix and sampled


def test_a_towers_sum_may_be_infinite_in_float16(
    load_policy: Any, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several processes the tower takes part in each pass, with no weight where no image is seen."""
    policy = load_policy(train_vision=True)
    policy.model.half()
    with torch.no_grad():
        for parameter in policy.loaded.family.vision_parameters(policy.model):
            parameter.fill_(200.0)
    monkeypatch.setattr(ranks, "count", lambda: 2)
    values = policy.logprobs(policy.encode(problems[1:2]), [[[7, 8, 9]]])
    assert bool(values.isfinite().all()) and values.requires_grad
