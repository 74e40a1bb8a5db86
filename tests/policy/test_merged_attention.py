"""The merged flash attention against the softmax written out."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.policy import shared_attention
from selfverify.policy.flash import CpuFlash, CudaFlash, Flash, Sizes, flash_for
from selfverify.policy.packing import Carrier, SharedLayout
from selfverify.policy.policy import Policy
from selfverify.policy.shared_attention import MergedAttention, SeenKeys, merged

B, G, K, R, D, P = 2, 3, 2, 5, 8, 7
SCALING = D**-0.5


def inputs(heads_per_key: int, dtype: torch.dtype = torch.float32, b: int = B, g: int = G) -> list[Tensor]:
    """Query, prompt keys, prompt values, own keys, own values."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(b, g, K, heads_per_key, R, D), (b, K, P, D), (b, K, P, D), (b, g, K, R, D), (b, g, K, R, D)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def written_out(q: Tensor, pk: Tensor, pv: Tensor, k: Tensor, v: Tensor, sizes: list[int] | None) -> Tensor:
    """Softmax over the prompt's and the own keys, from its definition."""
    keys = torch.cat([pk[:, None].expand(-1, q.shape[1], -1, -1, -1), k], dim=3)
    values = torch.cat([pv[:, None].expand(-1, q.shape[1], -1, -1, -1), v], dim=3)
    scores = torch.einsum("bgknrd,bgksd->bgknrs", q, keys) * SCALING
    later = torch.ones(R, R, dtype=torch.bool, device=q.device).triu(1)
    scores[..., P:] = scores[..., P:].masked_fill(later, float("-inf"))
    for b, size in enumerate(sizes or []):
        scores[b, ..., size:P] = float("-inf")
    return torch.einsum("bgknrs,bgksd->bgknrd", scores.softmax(-1), values)


def dense_kernel(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, debug: bool, *, scale: float
) -> tuple[object, ...]:
    """What CUDA's kernel computes, with its arguments and results, from the definition."""
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
    scores = q @ k.transpose(2, 3) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    log = scores.logsumexp(-1)
    out = (scores - log[..., None]).exp() @ v
    return out, log, None, None, q.shape[2], k.shape[2], "seed", "offset", None


def dense_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log: Tensor,
    cum_q: None,
    cum_k: None,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    seed: str,
    offset: str,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward: weights are exp(score - log) of the ``log`` that is handed in.

    Like CUDA's kernel it reads ``log`` from its first value on, one value after another, without its strides.
    """
    assert (max_q, max_k, seed, offset) == (q.shape[2], k.shape[2], "seed", "offset")
    log = torch.as_strided(log, log.shape, packed_strides(log), log.storage_offset())
    heads, n = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
    weights = (q @ k.transpose(2, 3) * scale - log[..., None]).exp()
    weights = weights.tril() if causal else weights
    slope = weights * (grad @ v.transpose(2, 3) - (grad * out).sum(-1, keepdim=True)) * scale
    own, to_values = slope.transpose(2, 3) @ q, weights.transpose(2, 3) @ grad
    return slope @ k, own.unflatten(1, (heads, n)).sum(2), to_values.unflatten(1, (heads, n)).sum(2)


def packed_strides(x: Tensor) -> list[int]:
    """The strides of a tensor of this shape whose values stand one after another."""
    return [*accumulate(x.shape[:0:-1], lambda a, b: a * b, initial=1)][::-1]


class DenseCuda(CudaFlash):
    """The CUDA path with stand-ins for its two kernels."""

    kernel = staticmethod(dense_kernel)
    kernel_backward = staticmethod(dense_backward)


def padded(sizes: list[int] | None) -> Sizes | None:
    return None if sizes is None else Sizes(torch.tensor(sizes))


SIZES = [(1, None), (1, [2]), (2, None), (2, [7, 2])]
"""How many prompts there are, and their true lengths."""
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("flash", [CpuFlash(), DenseCuda()], ids=["cpu", "cuda's layout"])
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("g", [1, 3])
@pytest.mark.parametrize(("b", "sizes"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_gradients_equal_the_definition(
    flash: Flash, heads_per_key: int, b: int, g: int, sizes: list[int] | None, dtype: torch.dtype
) -> None:
    ours, theirs = inputs(heads_per_key, dtype, b, g), inputs(heads_per_key, dtype, b, g)
    out = MergedAttention.apply(flash, *ours, padded(sizes), SCALING)
    expected = written_out(*theirs, sizes)
    assert_close(out, expected)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert wanted.grad.abs().max() > 0.1
        assert_close(mine.grad, wanted.grad)


@pytest.mark.parametrize("flash", [CpuFlash(), DenseCuda()], ids=["cpu", "cuda's layout"])
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("kept", [None, [4, 0, 2, 4, 1, 3]], ids=["even", "uneven"])
@pytest.mark.parametrize("sizes", [None, [7, 2]], ids=["full", "padded"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_behind_kept_tokens(
    flash: Flash, heads_per_key: int, kept: list[int] | None, sizes: list[int] | None, dtype: torch.dtype
) -> None:
    """Prompt, kept and new tokens, against the definition for each continuation with its keys in a row."""
    with torch.no_grad():
        query, *prompt, new_keys, new_values = inputs(heads_per_key, dtype)
        noise = [torch.randn(B, G, K, 4, D, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
        room = [each.to(dtype) for each in noise]
        new = new_keys, new_values
        seen = [
            SeenKeys((prompt[0], prompt[1]), padded(sizes)),
            SeenKeys((room[0], room[1]), padded(kept)),
            SeenKeys(new, causal=True),
        ]
        found = merged(flash, query, seen, SCALING)
        for b in range(B):
            for g in range(G):
                p, n = (sizes or [P] * B)[b], (kept or [4] * (B * G))[b * G + g]
                keys, values = (
                    torch.cat([prompt[i][b, :, :p], room[i][b, g, :, :n], new[i][b, g]], dim=1)
                    for i in range(2)
                )
                scores = torch.einsum("knrd,ksd->knrs", query[b, g], keys) * SCALING
                later = torch.ones(R, R, dtype=torch.bool).triu(1)
                scores[..., p + n :] = scores[..., p + n :].masked_fill(later, float("-inf"))
                expected = torch.einsum("knrs,ksd->knrd", scores.softmax(-1), values)
                assert_close(found[b, g], expected)


def test_single_tokens_in_cudas_layout(
    policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind prompts of one length each token is one row of the kernels; what is drawn is the same."""
    prompts, sampling = policy.encode([problems[0]] * 2), SamplingConfig(group_size=3, max_new_tokens=9)
    expected = policy.sample(prompts, sampling, seeds=range(2))
    rows, forward = list[int](), DenseCuda.forward
    monkeypatch.setattr(
        DenseCuda, "forward", lambda self, part: (rows.append(part.query.shape[2]), forward(self, part))[1]
    )
    monkeypatch.setattr(shared_attention, "flash_for", lambda query: DenseCuda())
    found = policy.sample(prompts, sampling, seeds=range(2))
    tokens = [[[x.tokens for x in group] for group in groups] for groups in (found, expected)]
    assert 1 in rows and tokens[0] == tokens[1]


def test_a_key_that_dwarfs_all_others_overflows_nothing() -> None:
    """One part's denominator is exp(1000) times the other's."""
    ours, theirs = inputs(1), inputs(1)
    for q, pk, *_ in (ours, theirs):
        q.data.fill_(50.0)
        pk.data[:, :, 3] = 10.0
    out, expected = MergedAttention.apply(CpuFlash(), *ours, None, SCALING), written_out(*theirs, None)
    assert_close(out, expected)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in ours)


def test_only_where_the_kernel_exists() -> None:
    assert isinstance(flash_for(torch.zeros(1)), CpuFlash)
    assert flash_for(torch.zeros(1, device="meta")) is None
    assert flash_for(torch.zeros(1, dtype=torch.float64)) is None


class Handed(TorchDispatchMode):
    """Looks at all that CUDA's backward kernel is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._scaled_dot_product_flash_attention_backward.default:
            grad, query, key, value, out, log = args[:6]
            self.calls += 1
            assert log.shape == query.shape[:3] and log.dtype == torch.float32
            assert log.stride() == (*packed_strides(log),)
            # The kernel knows these tensors' strides, but steps through a head's width by one. PyTorch
            # copies the gradient and the output where they are laid out in another way.
            assert all(x.stride(-1) == 1 for x in (query, key, value))
            assert grad.shape == out.shape == query.shape and key.shape == value.shape
            assert prod(query.shape) and prod(key.shape)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("rows", [[0], [0, 1, 2]], ids=["a slice of the group", "the whole group"])
@pytest.mark.parametrize(("b", "sizes"), SIZES)
def test_what_a_layer_hands_to_cudas_kernels(
    monkeypatch: pytest.MonkeyPatch, heads_per_key: int, b: int, rows: list[int], sizes: list[int] | None
) -> None:
    """From queries and keys in the memory order in which a model's layer makes them."""
    monkeypatch.setattr(shared_attention, "flash_for", lambda query: CudaFlash())
    length = P + len(rows) * R
    layout = SharedLayout("packed", torch.tensor(sizes or [P] * b), P, len(rows))
    made = [
        torch.zeros(b, length, heads, D, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for heads in (K * heads_per_key, K, K)
    ]
    with Handed() as handed:
        out, _ = shared_attention.shared_attention(
            SimpleNamespace(layer_idx=0),
            *(x.transpose(1, 2) for x in made),
            torch.zeros(1),
            shared=Carrier(layout),
        )
        out.sum().backward()
    assert handed.calls >= 1 + (len(sizes) if layout.sizes() else 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize(("b", "sizes"), SIZES)
def test_cudas_kernels_equal_the_definition(heads_per_key: int, b: int, sizes: list[int] | None) -> None:
    ours = [x.detach().cuda().bfloat16().requires_grad_() for x in inputs(heads_per_key, b=b)]
    theirs = [x.detach().float().requires_grad_() for x in ours]
    flash = flash_for(ours[0])
    assert isinstance(flash, CudaFlash)
    out = MergedAttention.apply(flash, *ours, padded(sizes), SCALING)
    expected = written_out(*theirs, sizes)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).cuda()
    (out.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.float(), wanted.grad, rtol=0.05, atol=0.05)
