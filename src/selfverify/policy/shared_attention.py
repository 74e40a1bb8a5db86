"""Attention in which the G continuations of a prompt share one copy of it.

A row holds a prompt once and its continuations one after another::

    [ prompt (P) | continuation 1 (R) | continuation 2 (R) | ... | continuation G (R) ]

Linear layers see P + G*R tokens instead of G*(P + R). Attention must keep the continuations apart, so
a continuation's query attends to the prompt's keys and to its own, and one softmax runs over both
parts; the result equals the plain forward of each prompt + continuation. Registered with transformers
under the name in `ATTENTION`, it serves every model that uses the attention interface, and falls
back to PyTorch's SDPA when no layout is passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from selfverify.policy.flash import Flash, flash_for
from selfverify.policy.layout import SharedLayout
from selfverify.policy.merged_attention import MergedAttention, merged
from selfverify.policy.two_part_attention import same_image, two_part_attention

ATTENTION = "selfverify_shared"


@dataclass(slots=True)
class _Layer:
    """What one layer's attention is given: ``query`` [B, K*N, L, D], ``key`` and ``value`` [B, K, L, D]."""

    layout: SharedLayout
    number: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    window: int | None

    def narrow_window(self, longest: int) -> int | None:
        """The sliding window; None where it covers all ``longest`` tokens of the longest row."""
        return None if self.window is None or longest <= self.window else self.window

    def flash(self, window: int | None) -> Flash | None:
        """Flash attention's kernels; None where there are none, or masks are needed that they don't take."""
        return flash_for(self.query) if window is None and self.layout.own_images is None else None


def _own_attention(
    layer: _Layer, query: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
) -> Tensor:
    """The continuations' tokens in one forward with their prompts.

    See `two_part_attention` for the shapes.
    """
    layout = layer.layout
    window = layer.narrow_window(layout.prompt_width + own[0].shape[3])
    flash = layer.flash(window)
    if flash is None or query.shape[4] == 1:
        return two_part_attention(layout, query, prompt, own, window, layer.scale)
    by_group = query.permute(0, 3, 1, 2, 4, 5)
    out: Tensor = MergedAttention.apply(flash, by_group, *prompt, *own, layout.sizes(), layer.scale)
    return out.permute(0, 2, 3, 1, 4, 5)


def _prompt_attention(layer: _Layer, group_tokens: int) -> Tensor:
    """The prompts' own attention ``[B, K*N, P, D]``.

    Padding stands right of the prompt, so the causal rule already hides it from the prompt's tokens.
    """
    layout, p = layer.layout, layer.layout.prompt_width
    query, key, value = (x[:, :, :p] for x in (layer.query, layer.key, layer.value))
    n = query.shape[1] // key.shape[1]
    window = layer.narrow_window(p + group_tokens)
    near = None
    if window is not None or layout.prompt_images is not None:
        places = torch.arange(p, device=query.device)
        near = places <= places[:, None]
        if layout.prompt_images is not None:
            near = (near | same_image(layout.prompt_images, layout.prompt_images))[:, None]
        if window is not None:
            near = near & (places[:, None] - places < window)
        if n > 1:
            # With a mask, CUDA's fast kernels don't take fewer key heads than query heads.
            key, value = key.repeat_interleave(n, dim=1), value.repeat_interleave(n, dim=1)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=near,
        is_causal=near is None,
        scale=layer.scale,
        enable_gqa=near is None and n > 1,
    )


def _packed(layer: _Layer) -> Tensor:
    """Prompts and, where there are any, their continuations in one forward."""
    query, key, value, p = layer.query, layer.key, layer.value, layer.layout.prompt_width
    b, heads, length, d = query.shape
    k, g = key.shape[1], layer.layout.continuations
    r = (length - p) // g
    prompt_out = _prompt_attention(layer, r)
    if g * r == 0:
        return prompt_out.transpose(1, 2)
    keys, values = (x[:, :, p:].unflatten(2, (g, r)).transpose(1, 2) for x in (key, value))
    own_query = query[:, :, p:].reshape(b, k, heads // k, g, r, d)
    own_out = _own_attention(layer, own_query, (key[:, :, :p], value[:, :, :p]), (keys, values))
    return torch.cat([prompt_out, own_out.reshape(b, heads, g * r, d)], dim=2).transpose(1, 2)


def _grow(layer: _Layer) -> Tensor:
    """The R newest tokens of every continuation behind a kept prompt and the continuation's own tokens."""
    layout, k = layer.layout, layer.key.shape[1]
    b, heads, length, d = layer.query.shape
    g = layout.continuations
    r = length // g
    new = layer.key.unflatten(2, (g, r)).transpose(1, 2), layer.value.unflatten(2, (g, r)).transpose(1, 2)
    keys, values = layout.add(layer.number, new)
    query = layer.query.reshape(b, k, heads // k, g, r, d)
    # Without a prompt all tokens are the continuation's own.
    prompt = layout.prompt_keys.get(layer.number, (layer.key[:, :, :0], layer.value[:, :, :0]))
    window = layer.narrow_window(layout.prompt_width + keys.shape[3])
    flash = layer.flash(window)
    # A single token's scores are few, and a product of matrices is faster.
    if flash is None or r == 1:
        out = two_part_attention(layout, query, prompt, (keys, values), window, layer.scale)
        return out.reshape(b, heads, length, d).transpose(1, 2)
    kept = keys[:, :, :, : layout.longest], values[:, :, :, : layout.longest]
    sizes = layout.sizes(), layout.kept_sizes()
    by_group = query.permute(0, 3, 1, 2, 4, 5)
    out = merged(flash, by_group, prompt, kept, new, sizes, layer.scale).permute(0, 2, 3, 1, 4, 5)
    return out.reshape(b, heads, length, d).transpose(1, 2)


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    shared: SharedLayout | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    Args:
        module: The layer's attention; its ``layer_idx`` is the layer's number.
        query: ``[B, heads, L, D]``; ``key`` and ``value`` ``[B, key heads, L, D]``, positions applied.
        key: See ``query``.
        value: See ``query``.
        attention_mask: Of an ordinary batch; rows with a layout don't use it.
        scaling: Factor of the scores; None is D ** -0.5.
        shared: The row layout; None means an ordinary batch, whose mask knows the window.
        sliding_window: A token sees itself and the ``sliding_window - 1`` before it; None: all.
        kwargs: Passed on to transformers' own attention of an ordinary batch.

    Returns:
        ``[B, L, heads, D]`` and None (attention weights are not kept).
    """
    if shared is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    number: int = module.layer_idx  # type: ignore[assignment]
    # Under autocast rotary embeddings have made queries and keys wider again.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if shared.mode == "prefill":
        # Every new token meets them again: in a layout that is not packed they would be copied each time.
        shared.prompt_keys[number] = (key.contiguous(), value.contiguous())
    layer = _Layer(shared, number, query, key, value, scale, sliding_window)
    return (_grow if shared.mode == "grow" else _packed)(layer), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
