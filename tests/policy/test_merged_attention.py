"""The merged flash attention against the softmax written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from selfverify.policy.merged_attention import MergedAttention, can_merge

B, G, K, R, D, P = 2, 3, 2, 5, 8, 7
SCALING = D**-0.5


def inputs(heads_per_key: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, prompt keys, prompt values, own keys, own values."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, G, K, heads_per_key, R, D), (B, K, P, D), (B, K, P, D), (B, G, K, R, D), (B, G, K, R, D)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def written_out(q: Tensor, pk: Tensor, pv: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
    """Softmax over the prompt's and the own keys, from its definition."""
    keys = torch.cat([pk[:, None].expand(B, G, K, P, D), k], dim=3)
    values = torch.cat([pv[:, None].expand(B, G, K, P, D), v], dim=3)
    scores = torch.einsum("bgknrd,bgksd->bgknrs", q, keys) * SCALING
    later = torch.ones(R, R, dtype=torch.bool).triu(1)
    scores[..., P:] = scores[..., P:].masked_fill(later, float("-inf"))
    if padding is not None:
        scores[..., :P] = scores[..., :P] + padding[:, None, :, None]
    return torch.einsum("bgknrs,bgksd->bgknrd", scores.softmax(-1), values)


def padding_of(lengths: list[int]) -> Tensor:
    hidden = torch.arange(P) >= torch.tensor(lengths)[:, None]
    return torch.zeros(B, P).masked_fill(hidden, torch.finfo(torch.float32).min)[:, None, None]


@pytest.mark.parametrize("heads_per_key", [1, 3])
@pytest.mark.parametrize("padding", [None, padding_of([7, 2])], ids=["full", "padded"])
def test_output_and_gradients_equal_the_definition(heads_per_key: int, padding: Tensor | None) -> None:
    ours, theirs = inputs(heads_per_key), inputs(heads_per_key)
    out = MergedAttention.apply(*ours, padding, SCALING)
    expected = written_out(*theirs, padding)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert wanted.grad is not None and wanted.grad.abs().max() > 0.1
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-5)


def test_a_key_that_dwarfs_all_others_overflows_nothing() -> None:
    """One part's denominator is exp(1000) times the other's."""
    ours, theirs = inputs(1), inputs(1)
    for q, pk, *_ in (ours, theirs):
        q.data.fill_(50.0)
        pk.data[:, :, 3] = 10.0
    out, expected = MergedAttention.apply(*ours, None, SCALING), written_out(*theirs, None)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in ours)


def test_half_precision_stays_near() -> None:
    out = MergedAttention.apply(*inputs(2, torch.bfloat16), None, SCALING)
    assert out.dtype == torch.bfloat16
    exact = written_out(*[x.detach().to(torch.bfloat16).float() for x in inputs(2)], None)
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)


def test_only_where_the_kernel_exists() -> None:
    assert can_merge(torch.zeros(1))
    assert not can_merge(torch.zeros(1, device="meta"))
    assert not can_merge(torch.zeros(1, dtype=torch.float64))
