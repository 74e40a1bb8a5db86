"""One softmax over two sets of keys, by PyTorch's flash attention, without holding its weights.

Attention over the union of two key sets is the average of the attention over each, weighted by their
shares of the softmax's denominator; a flash kernel returns the logarithm of its denominator beside its
output, so two calls and a merge give the whole (ring attention, Liu et al. 2023, merges the same way). In the
backward pass the same kernel is handed the *merged* output and denominator: a softmax weight is exp(score -
log of the whole denominator), whichever part the key is in, so each call returns its part's exact gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selfverify.policy.flash import Flash, Part, Sizes

Pair = tuple[Tensor, Tensor]
"""Keys and values."""


def merged(
    flash: Flash,
    query: Tensor,
    prompt: Pair,
    kept: Pair,
    new: Pair,
    sizes: tuple[Sizes, Sizes],
    scaling: float,
) -> Tensor:
    """Attention of new tokens to their prompt, to their continuation's kept tokens and to each other.

    It has no gradients.

    Args:
        flash: The device's kernels.
        query: ``[B, G, K, N, R, D]``: K key heads, N query heads per key head, R new tokens.
        prompt: Keys and values ``[B, K, P, D]``.
        kept: Keys and values ``[B, G, K, T, D]``.
        new: Keys and values ``[B, G, K, R, D]``; token r sees new keys 0..r.
        sizes: The true lengths of B prompts, and the numbers of B*G continuations' kept tokens; None where
            all are P or T.
        scaling: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``.
    """
    shape = query.shape
    found = []
    for pair, own, size in ((prompt, False, sizes[0]), (kept, True, sizes[1]), (new, True, None)):
        keys, values = (x.flatten(0, 1) for x in pair) if own else pair
        if not keys.shape[2]:
            continue
        causal = shape[4] if pair is new else 0
        out, log, _ = flash.forward(Part(flash.rows(query, own), keys, values, causal, size, scaling))
        found.append((flash.unrows(out, shape, own), flash.unrows(log.unsqueeze(-1), shape, own)))
    whole = found[0][1]
    for _, log in found[1:]:
        whole = torch.logaddexp(whole, log)
    total = found[0][0] * (found[0][1] - whole).exp()
    for out, log in found[1:]:
        total = total.addcmul_(out, (log - whole).exp())
    return total.to(query.dtype)


class MergedAttention(torch.autograd.Function):
    """Attention of continuations to their prompt's keys and to their own earlier tokens.

    Call ``MergedAttention.apply(flash, query, prompt_keys, prompt_values, keys, values, sizes, scaling)``.

    Args:
        flash: The device's kernels.
        query: ``[B, G, K, N, R, D]``: K key heads, N query heads per key head, R tokens.
        prompt_keys, prompt_values: ``[B, K, P, D]``.
        keys, values: ``[B, G, K, R, D]``; token r sees own keys 0..r.
        sizes: True prompt lengths where prompts are padded, or None.
        scaling: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        flash: Flash,
        query: Tensor,
        prompt_keys: Tensor,
        prompt_values: Tensor,
        keys: Tensor,
        values: Tensor,
        sizes: Sizes,
        scaling: float,
    ) -> Tensor:
        """See the class."""
        shape = query.shape
        to_prompt, to_own = flash.rows(query, False), flash.rows(query, True)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        prompt = Part(to_prompt, prompt_keys, prompt_values, 0, sizes, scaling)
        first, first_log, first_rest = flash.forward(prompt)
        own = Part(to_own, keys, values, shape[4], None, scaling)
        second, second_log, second_rest = flash.forward(own)
        first = flash.unrows(first, shape, False)
        second = flash.unrows(second, shape, True)
        first_log = flash.unrows(first_log.unsqueeze(-1), shape, False)
        second_log = flash.unrows(second_log.unsqueeze(-1), shape, True)
        log = torch.logaddexp(first_log, second_log)
        out = (first * (first_log - log).exp()).addcmul_(second, (second_log - log).exp()).to(query.dtype)
        ctx.save_for_backward(to_prompt, to_own, prompt_keys, prompt_values, keys, values, out, log)
        ctx.flash, ctx.rests, ctx.sizes, ctx.scaling = flash, (first_rest, second_rest), sizes, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, keys and values."""
        to_prompt, to_own, prompt_keys, prompt_values, keys, values, out, log = ctx.saved_tensors
        flash: Flash = ctx.flash
        shape = out.shape
        parts = (
            Part(to_prompt, prompt_keys, prompt_values, 0, ctx.sizes, ctx.scaling),
            Part(to_own, keys, values, shape[4], None, ctx.scaling),
        )
        found = [
            flash.backward(
                part,
                flash.rows(grad, own),
                flash.rows(out, own),
                flash.rows(log, own).squeeze(-1),
                rest,
            )
            for own, part, rest in zip((False, True), parts, ctx.rests, strict=True)
        ]
        (q1, *prompt_grads), (q2, *own_grads) = found
        own_grads = [g.unflatten(0, shape[:2]) for g in own_grads]
        query_grad = flash.unrows(q1, shape, False) + flash.unrows(q2, shape, True)
        return None, query_grad, *prompt_grads, *own_grads, None, None
