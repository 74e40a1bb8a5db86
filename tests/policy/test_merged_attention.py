"""The merged flash attention against the softmax written out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from selfverify.core.problem import Problem
from selfverify.policy import shared_attention
from selfverify.policy.flash import CpuFlash, CudaFlash, Flash, flash_for
from selfverify.policy.merged_attention import MergedAttention, merged
from selfverify.policy.policy import Policy

B, G, K, R, D, P = 2, 3, 2, 5, 8, 7
SCALING = D**-0.5


def inputs(heads_per_key: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, prompt keys, prompt values, own keys, own values."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, G, K, heads_per_key, R, D), (B, K, P, D), (B, K, P, D), (B, G, K, R, D), (B, G, K, R, D)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def written_out(q: Tensor, pk: Tensor, pv: Tensor, k: Tensor, v: Tensor, sizes: list[int] | None) -> Tensor:
    """Softmax over the prompt's and the own keys, from its definition."""
    keys = torch.cat([pk[:, None].expand(B, G, K, P, D), k], dim=3)
    values = torch.cat([pv[:, None].expand(B, G, K, P, D), v], dim=3)
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
    return (
        (scores - log[..., None]).exp() @ v,
        log,
        None,
        None,
        q.shape[2],
        k.shape[2],
        "seed",
        "offset",
        None,
    )


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
    """Its backward: weights are exp(score - log) of the ``log`` that is handed in."""
    assert (max_q, max_k, seed, offset) == (q.shape[2], k.shape[2], "seed", "offset")
    heads, n = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
    weights = (q @ k.transpose(2, 3) * scale - log[..., None]).exp()
    weights = weights.tril() if causal else weights
    slope = weights * (grad @ v.transpose(2, 3) - (grad * out).sum(-1, keepdim=True)) * scale
    own, to_values = slope.transpose(2, 3) @ q, weights.transpose(2, 3) @ grad
    return slope @ k, own.unflatten(1, (heads, n)).sum(2), to_values.unflatten(1, (heads, n)).sum(2)


class DenseCuda(CudaFlash):
    """The CUDA path with stand-ins for its two kernels."""

    kernel = staticmethod(dense_kernel)
    kernel_backward = staticmethod(dense_backward)


@pytest.mark.parametrize("flash", [CpuFlash(), DenseCuda()], ids=["cpu", "cuda's layout"])
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("sizes", [None, [7, 2]], ids=["full", "padded"])
def test_output_and_gradients_equal_the_definition(
    flash: Flash, heads_per_key: int, sizes: list[int] | None
) -> None:
    ours, theirs = inputs(heads_per_key), inputs(heads_per_key)
    out = MergedAttention.apply(flash, *ours, sizes, SCALING)
    expected = written_out(*theirs, sizes)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert wanted.grad is not None and wanted.grad.abs().max() > 0.1
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flash", [CpuFlash(), DenseCuda()], ids=["cpu", "cuda's layout"])
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("kept", [None, [4, 0, 2, 4, 1, 3]], ids=["even", "uneven"])
@pytest.mark.parametrize("sizes", [None, [7, 2]], ids=["full", "padded"])
def test_behind_kept_tokens(
    flash: Flash, heads_per_key: int, kept: list[int] | None, sizes: list[int] | None
) -> None:
    """Prompt, kept and new tokens, against the definition for each continuation with its keys in a row."""
    with torch.no_grad():
        query, *prompt, new_keys, new_values = inputs(heads_per_key)
        room = [torch.randn(B, G, K, 4, D, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
        new = new_keys, new_values
        found = merged(flash, query, (prompt[0], prompt[1]), (room[0], room[1]), new, (sizes, kept), SCALING)
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
                torch.testing.assert_close(found[b, g], expected, rtol=1e-5, atol=1e-5)


def test_behind_nothing_but_new_tokens() -> None:
    """Without a prompt and without kept tokens, as at the beginning of a long prompt."""
    with torch.no_grad():
        query, keys, values, *new = inputs(2)
        none = keys[:, :, :0], values[:, :, :0]
        no_kept = (new[0][:, :, :, :0], new[1][:, :, :, :0])
        found = merged(CpuFlash(), query, none, no_kept, (new[0], new[1]), (None, None), SCALING)
        later = torch.ones(R, R, dtype=torch.bool).triu(1)
        scores = torch.einsum("bgknrd,bgksd->bgknrs", query, new[0]) * SCALING
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        torch.testing.assert_close(found, torch.einsum("bgknrs,bgksd->bgknrd", weights, new[1]))


def test_a_key_that_dwarfs_all_others_overflows_nothing() -> None:
    """One part's denominator is exp(1000) times the other's."""
    ours, theirs = inputs(1), inputs(1)
    for q, pk, *_ in (ours, theirs):
        q.data.fill_(50.0)
        pk.data[:, :, 3] = 10.0
    out, expected = MergedAttention.apply(CpuFlash(), *ours, None, SCALING), written_out(*theirs, None)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in ours)


def test_half_precision_stays_near() -> None:
    out = MergedAttention.apply(CpuFlash(), *inputs(2, torch.bfloat16), None, SCALING)
    assert out.dtype == torch.bfloat16
    exact = written_out(*[x.detach().to(torch.bfloat16).float() for x in inputs(2)], None)
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)


def test_only_where_the_kernel_exists() -> None:
    assert isinstance(flash_for(torch.zeros(1)), CpuFlash)
    assert flash_for(torch.zeros(1, device="meta")) is None
    assert flash_for(torch.zeros(1, dtype=torch.float64)) is None


@pytest.mark.parametrize("sizes", [None, [7, 2]], ids=["full", "padded"])
def test_what_cudas_kernels_are_handed(sizes: list[int] | None) -> None:
    """Without a GPU: PyTorch's own shape rules for its CUDA kernels take what the path hands them."""
    values = [x.detach().to("meta", torch.bfloat16).requires_grad_() for x in inputs(3)]
    out = MergedAttention.apply(CudaFlash(), *values, sizes, SCALING)
    assert out.shape == values[0].shape and out.dtype == torch.bfloat16
    out.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in values)


def test_a_policy_in_cudas_layout(
    tiny_folder: Path, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different lengths through the whole model, against the plain forward."""
    monkeypatch.setattr(shared_attention, "flash_for", lambda query: DenseCuda())
    policy = Policy.load(str(tiny_folder), device="cpu")
    prompts = policy.encode(problems)
    tokens = [[[70, 71, 72, 73], [75]], [[80, 81], [82, 83, 84]], [[85], [86, 87]]]
    found = []
    for shares in (True, False):
        policy.shares_prefix = shares
        policy.model.zero_grad()
        logprobs = policy.logprobs(prompts, tokens)
        logprobs.sum().backward()
        grads = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        found.append((logprobs.detach(), grads))
    (shared, ours), (plain, theirs) = found
    torch.testing.assert_close(shared, plain, rtol=1e-5, atol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        torch.testing.assert_close(ours[name], wanted, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("sizes", [None, [7, 2]], ids=["full", "padded"])
def test_cudas_kernels_equal_the_definition(heads_per_key: int, sizes: list[int] | None) -> None:
    ours = [x.detach().cuda().bfloat16().requires_grad_() for x in inputs(heads_per_key)]
    theirs = [x.detach().float().requires_grad_() for x in ours]
    flash = flash_for(ours[0])
    assert isinstance(flash, CudaFlash)
    out, expected = MergedAttention.apply(flash, *ours, sizes, SCALING), written_out(*theirs, sizes)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).cuda()
    (out.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.grad is not None and wanted.grad is not None
        torch.testing.assert_close(mine.grad.float(), wanted.grad, rtol=0.05, atol=0.05)
