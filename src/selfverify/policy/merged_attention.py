"""One softmax over two sets of keys, by PyTorch's flash attention, without holding its weights.

Attention over the union of two key sets is the average of the attention over each, weighted by their
shares of the softmax's denominator; a flash kernel returns the logarithm of its denominator beside its
output, so two calls and a merge give the whole (ring attention, Liu et al. 2023, merges so too). Backward,
the same kernel is handed the *merged* output and denominator: a softmax weight is exp(score - log of
the whole denominator), whichever part the key is in, so each call returns its part's exact gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def can_merge(query: Tensor) -> bool:
    """Whether the kernel exists for this tensor; elsewhere the weights are written out."""
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16)


class MergedAttention(torch.autograd.Function):
    """Attention of continuations to their prompt's keys and to their own earlier tokens.

    Call ``MergedAttention.apply(query, prompt_keys, prompt_values, keys, values, padding, scaling)``.

    Args:
        query: ``[B, G, K, N, R, D]``: K key heads, N query heads per key head, R tokens.
        prompt_keys, prompt_values: ``[B, K, P, D]``.
        keys, values: ``[B, G, K, R, D]``; token r sees own keys 0..r.
        padding: ``[B, 1, 1, P]`` added to the prompt's scores, or None.
        scaling: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        prompt_keys: Tensor,
        prompt_values: Tensor,
        keys: Tensor,
        values: Tensor,
        padding: Tensor | None,
        scaling: float,
    ) -> Tensor:
        """See the class."""
        shape = query.shape
        to_prompt, to_own = _by_prompt(query), _by_continuation(query)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        causal = _causal(query)
        first, first_log = _FLASH(
            to_prompt, prompt_keys, prompt_values, 0.0, False, attn_mask=padding, scale=scaling
        )
        second, second_log = _FLASH(
            to_own, keys, values, 0.0, causal is None, attn_mask=causal, scale=scaling
        )
        first, first_log = _from_prompt(first, shape), _from_prompt(first_log.unsqueeze(-1), shape)
        second, second_log = second.view(shape), second_log.view(*shape[:-1], 1)
        log = torch.logaddexp(first_log, second_log)
        out = (first * (first_log - log).exp()).addcmul_(second, (second_log - log).exp()).to(query.dtype)
        ctx.save_for_backward(to_prompt, to_own, prompt_keys, prompt_values, keys, values, padding, out, log)
        ctx.scaling = scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of everything but the padding and the factor."""
        to_prompt, to_own, prompt_keys, prompt_values, keys, values, padding, out, log = ctx.saved_tensors
        shape = out.shape
        causal = _causal(out)
        q1, *prompt_grads = _FLASH_BACKWARD(
            _by_prompt(grad),
            to_prompt,
            prompt_keys,
            prompt_values,
            _by_prompt(out),
            _by_prompt(log).squeeze(-1),
            0.0,
            False,
            attn_mask=padding,
            scale=ctx.scaling,
        )
        q2, *own_grads = _FLASH_BACKWARD(
            _by_continuation(grad),
            to_own,
            keys,
            values,
            _by_continuation(out),
            _by_continuation(log).squeeze(-1),
            0.0,
            causal is None,
            attn_mask=causal,
            scale=ctx.scaling,
        )
        own_grads = [g.unflatten(0, shape[:2]) for g in own_grads]
        return (_from_prompt(q1, shape) + q2.view(shape), *prompt_grads, *own_grads, None, None)


def _by_prompt(x: Tensor) -> Tensor:
    """``[B, G, K, N, R, *]`` to ``[B, K, G*N*R, *]``: all that looks at one prompt in one row."""
    return x.transpose(1, 2).flatten(2, 4)


def _from_prompt(x: Tensor, shape: torch.Size) -> Tensor:
    """Back from `_by_prompt`."""
    b, g, k, n, r, _ = shape
    return x.view(b, k, g, n, r, -1).transpose(1, 2)


def _by_continuation(x: Tensor) -> Tensor:
    """``[B, G, K, N, R, *]`` to ``[B*G, K, N*R, *]``."""
    return x.flatten(3, 4).flatten(0, 1)


def _causal(query: Tensor) -> Tensor | None:
    """The causal mask ``[N*R, R]`` where several query heads share a key head; None: the kernel's own."""
    n, r = query.shape[3:5]
    if n == 1:
        return None
    hidden = torch.ones(r, r, dtype=torch.bool, device=query.device).triu(1)
    mask = torch.zeros(r, r, dtype=query.dtype, device=query.device).masked_fill(hidden, float("-inf"))
    return mask.repeat(n, 1)
