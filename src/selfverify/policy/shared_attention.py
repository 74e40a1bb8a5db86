"""Attention in which the G continuations of a prompt share one copy of it.

A row holds a prompt once and its continuations one after another::

    [ prompt (P) | continuation 1 (R) | continuation 2 (R) | ... | continuation G (R) ]

Linear layers see P + G*R tokens instead of G*(P + R). Attention must keep the continuations apart, so
a continuation's query attends to the prompt's keys and to its own, and one softmax runs over both
parts; the result equals the plain forward of each prompt + continuation. Registered with transformers
under the name in `ATTENTION`, it serves every model that uses the attention interface and hands it nothing
that is not known here. Outside of such passes (`sharing`) it is PyTorch's attention, by transformers' masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

_KNOWN = {"dropout", "position_ids", "use_cache", "output_attentions"}
"""Arguments that layers hand to their attention beside those of `shared_attention`; all others change it."""


_sharing = ContextVar("a pass over rows with a layout is running", default=False)


@contextmanager
def sharing() -> Iterator[None]:
    """A context of a pass over rows with a layout, in which no layer may attend without it."""
    token = _sharing.set(True)
    try:
        yield
    finally:
        _sharing.reset(token)


class SharingError(RuntimeError):
    """A model whose prompts cannot be shared; the message says why, as a part of a sentence."""


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


def check_kinds(config: Any) -> None:
    """Refuse a decoder some of whose layers attend by a rule that is not known here, whatever the lengths.

    Args:
        config: The decoder's configuration.

    Raises:
        SharingError: Such layers are named.
    """
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    if getattr(config, "attention_chunk_size", None) is not None and not hasattr(config, "layer_types"):
        kinds.add("chunked_attention")
    if kinds:
        raise SharingError(f"some of its layers are of the kind {', '.join(sorted(kinds))}")


def check_layers(decoder: Any, layout: SharedLayout) -> None:
    """Check after a pass that every layer attended through `shared_attention`, with the window of its kind.

    Args:
        decoder: The decoder that ran.
        layout: The layout of the pass.

    Raises:
        SharingError: A layer did not.
    """
    config = decoder.config
    count = max(config.num_hidden_layers, len(getattr(decoder, "layers", ())))
    if missing := [number for number in range(count) if number not in layout.windows]:
        raise SharingError(
            f"{len(missing)} of its {count} layers do not attend through transformers' attention interface"
        )
    for number, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if (layout.windows[number] is None) == (kind == "sliding_attention"):
            raise SharingError(f"layer {number}, a {kind}, has the window {layout.windows[number]}")


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
        attention_mask: The one element that `Forward` passes; the layout says who sees what.
        scaling: Factor of the scores; None is D ** -0.5.
        shared: The row layout; None in an ordinary batch, whose mask knows the window.
        sliding_window: A token sees itself and the ``sliding_window - 1`` before it; None: all.
        kwargs: What else the layer hands over.

    Returns:
        ``[B, L, heads, D]`` and None (attention weights are not kept).

    Raises:
        SharingError: The layer lost the layout, changed the mask, or asks for what is not known here.
    """
    if shared is None:
        if _sharing.get():
            raise SharingError("its layers do not hand on how rows are laid out")
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if attention_mask is None or attention_mask.numel() != 1:
        raise SharingError("its layers make attention masks of their own")
    unknown = [name for name, given in kwargs.items() if name not in _KNOWN and given is not None]
    if unknown:
        raise SharingError(f"its layers hand their attention {', '.join(unknown)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    number: int = module.layer_idx  # type: ignore[assignment]
    shared.windows[number] = sliding_window
    # Under autocast rotary embeddings have made queries and keys wider again.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if shared.mode == "prefill":
        # Every new token meets them again: in a layout that is not packed they would be copied each time.
        shared.prompt_keys[number] = (key.contiguous(), value.contiguous())
    layer = _Layer(shared, number, query, key, value, scale, sliding_window)
    # Contiguous like what transformers' own functions return, on which a few models rely.
    return (_grow if shared.mode == "grow" else _packed)(layer).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
