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

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from selfverify.policy.flash import flash_for
from selfverify.policy.merged_attention import MergedAttention

ATTENTION = "selfverify_shared"


@dataclass(slots=True)
class SharedLayout:
    """How a row is laid out, and for generation the keys and values seen so far.

    Args:
        mode: ``packed`` (prompt and continuations in one forward), ``prefill`` (prompts only, their keys
            and values are kept), ``extend`` (what continuations are given, all at once) or ``decode`` (one
            new token for each of the G continuations).
        prompt_lengths: ``[B]`` true prompt lengths; prompts are padded on the right to P.
        prompt_width: P.
        continuations: G.
        steps: Room for own tokens (``decode``), those of ``extend`` included.
        prompt_images: ``[B, P]`` number of the image that a token belongs to, -1 for text, where an image's
            tokens see each other both ways; None where every token sees only what stands before it.
        own_images: ``[B, G, R]`` the same of the continuations (``packed``).
        given_lengths: ``[B, G]`` how many of the ``given_width`` first own tokens are no padding; None where
            nothing was given.
    """

    mode: Literal["packed", "prefill", "extend", "decode"]
    prompt_lengths: Tensor
    prompt_width: int
    continuations: int = 1
    steps: int = 0
    position: int = 0
    prompt_keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    own_keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    prompt_images: Tensor | None = None
    own_images: Tensor | None = None
    given_lengths: Tensor | None = None
    given_width: int = 0
    _sizes: list[int] | None = None

    def sizes(self) -> list[int]:
        """The prompt lengths, fetched from the device once: every layer asks for them."""
        if self._sizes is None:
            self._sizes = self.prompt_lengths.tolist()
        return self._sizes

    def padded(self) -> bool:
        """Whether any prompt is padded."""
        return any(size != self.prompt_width for size in self.sizes())

    def prompt_padding(self) -> Tensor | None:
        """``[B, P]`` True at padding, or None when no prompt is padded."""
        if not self.padded():
            return None
        places = torch.arange(self.prompt_width, device=self.prompt_lengths.device)
        return places[None, :] >= self.prompt_lengths[:, None]

    def select(self, problems: Tensor, slots: Tensor) -> SharedLayout:
        """The layout with only ``problems`` [B'] and of each the continuations ``slots`` [B', G']."""
        rows = problems[:, None]
        return SharedLayout(
            mode="decode",
            prompt_lengths=self.prompt_lengths[problems],
            prompt_width=self.prompt_width,
            continuations=slots.shape[1],
            steps=self.steps,
            position=self.position,
            prompt_keys={i: (k[problems], v[problems]) for i, (k, v) in self.prompt_keys.items()},
            own_keys={i: (k[rows, slots], v[rows, slots]) for i, (k, v) in self.own_keys.items()},
            given_lengths=None if self.given_lengths is None else self.given_lengths[rows, slots],
            given_width=self.given_width,
        )


def _two_part_attention(
    query: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], mask: _Masks, scaling: float
) -> Tensor:
    """One softmax over the prompt's keys and a continuation's own.

    Args:
        query: ``[B, K, N, G, Q, D]``: K key heads, N query heads per key head, Q new tokens.
        prompt: Keys and values ``[B, K, P, D]``.
        own: Keys and values ``[B, G, K, T, D]``.

    Returns:
        ``[B, K, N, G, Q, D]``.
    """
    b, k, n, g, q, d = query.shape
    width = prompt[0].shape[2]
    scores_prompt = torch.matmul(query.reshape(b, k, n * g * q, d) * scaling, prompt[0].transpose(2, 3))
    scores_prompt = scores_prompt.view(b, k, n, g, q, width)
    # Own keys differ by continuation: bring G beside B, and the N query heads into the rows.
    own_query = query.permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, d) * scaling
    scores_own = torch.matmul(own_query, own[0].transpose(3, 4)).view(b, g, k, n, q, -1)
    scores_own = scores_own.permute(0, 2, 3, 1, 4, 5)
    if mask.prompt is not None:
        scores_prompt = scores_prompt + mask.prompt
    if mask.own is not None:
        scores_own = scores_own + mask.own
    weights = torch.cat([scores_prompt, scores_own], dim=-1).softmax(dim=-1, dtype=torch.float32)
    weights = weights.to(query.dtype)
    out = torch.matmul(weights[..., :width].reshape(b, k, n * g * q, width), prompt[1]).view(b, k, n, g, q, d)
    own_weights = weights[..., width:].permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, -1)
    own_out = torch.matmul(own_weights, own[1]).view(b, g, k, n, q, d)
    return out + own_out.permute(0, 2, 3, 1, 4, 5)


@dataclass(slots=True)
class _Masks:
    """Added to the scores: ``prompt`` [B, 1, 1, G or 1, Q or 1, P], ``own`` [Q, T] or [B, 1, 1, G, Q, T]."""

    prompt: Tensor | None
    own: Tensor | None


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest number where ``hidden``, else 0: rows that see nothing stay finite."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(
        hidden, torch.finfo(dtype).min
    )


def _same_image(images: Tensor) -> Tensor:
    """``[..., L]`` to ``[..., L, L]``: whether two tokens belong to one image."""
    return (images[..., :, None] == images[..., None, :]) & (images[..., :, None] >= 0)


def _padding(layout: SharedLayout, dtype: torch.dtype) -> Tensor | None:
    """The prompt's part of the masks where there is no window."""
    padding = layout.prompt_padding()
    return None if padding is None else _hide(padding, dtype)[:, None, None, None, None]


def _masks(layout: SharedLayout, query: Tensor, first: int, count: int, window: int | None) -> _Masks:
    """Masks of own tokens ``first`` to ``first + count - 1`` against the prompt and the own tokens so far."""
    steps = torch.arange(first + count, device=query.device)
    queries = steps[first:, None]
    hidden = steps > queries
    if layout.own_images is not None:
        hidden = (hidden & ~_same_image(layout.own_images))[:, None, None]
    prompt = _padding(layout, query.dtype)
    if window is not None:
        hidden = hidden | (queries - steps >= window)
        places = torch.arange(layout.prompt_width, device=query.device)
        far = (layout.prompt_lengths[:, None, None] + queries) - places >= window
        far_mask = _hide(far, query.dtype)[:, None, None, None]
        prompt = far_mask if prompt is None else torch.minimum(far_mask, prompt)
    return _Masks(prompt, _hide(hidden, query.dtype))


def _gap_masks(layout: SharedLayout, query: Tensor, window: int | None) -> _Masks:
    """Masks of the newest own token where continuations were given tokens, with padding between the two."""
    assert layout.given_lengths is not None
    lengths = layout.given_lengths[..., None]
    columns = torch.arange(layout.position + 1, device=query.device)
    hidden = (columns >= lengths) & (columns < layout.given_width)
    prompt = _padding(layout, query.dtype)
    if window is not None:
        newest = lengths + layout.position - layout.given_width
        places = torch.where(columns < layout.given_width, columns, lengths + columns - layout.given_width)
        hidden = hidden | (newest - places >= window)
        before = torch.arange(layout.prompt_width, device=query.device)
        far = layout.prompt_lengths[:, None, None] + newest - before >= window
        far_mask = _hide(far, query.dtype)[:, None, None, :, None]
        prompt = far_mask if prompt is None else torch.minimum(far_mask, prompt)
    return _Masks(prompt, _hide(hidden, query.dtype)[:, None, None, :, None])


def _packed(
    layout: SharedLayout, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
) -> Tensor:
    b, heads, length, d = query.shape
    k, p, g = key.shape[1], layout.prompt_width, layout.continuations
    n, r = heads // k, (length - p) // g
    if window is not None and p + r <= window:
        window = None
    # Padding stands right of the prompt, so the causal rule already hides it from the prompt's tokens.
    near = None
    if window is not None or layout.prompt_images is not None:
        places = torch.arange(p, device=query.device)
        near = places <= places[:, None]
        if layout.prompt_images is not None:
            near = (near | _same_image(layout.prompt_images))[:, None]
        if window is not None:
            near = near & (places[:, None] - places < window)
    seen, read = key[:, :, :p], value[:, :, :p]
    if near is not None and n > 1:
        # With a mask, CUDA's fast kernels don't take fewer key heads than query heads.
        seen, read = seen.repeat_interleave(n, dim=1), read.repeat_interleave(n, dim=1)
    prompt_out = F.scaled_dot_product_attention(
        query[:, :, :p],
        seen,
        read,
        attn_mask=near,
        is_causal=near is None,
        scale=scaling,
        enable_gqa=near is None and n > 1,
    )
    if g * r == 0:
        return prompt_out.transpose(1, 2)
    keys, values = (x[:, :, p:].unflatten(2, (g, r)).transpose(1, 2) for x in (key, value))
    own_query = query[:, :, p:].reshape(b, k, n, g, r, d)
    prompt = (key[:, :, :p], value[:, :, :p])
    own_out = _own_attention(layout, own_query, prompt, (keys, values), scaling, window)
    return torch.cat([prompt_out, own_out.reshape(b, heads, g * r, d)], dim=2).transpose(1, 2)


def _own_attention(
    layout: SharedLayout,
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    scaling: float,
    window: int | None,
) -> Tensor:
    """All of the continuations' tokens at once; see `_two_part_attention` for the shapes (Q = T)."""
    flash = flash_for(query) if window is None and layout.own_images is None else None
    if flash is not None:
        by_group = query.permute(0, 3, 1, 2, 4, 5)
        sizes = layout.sizes() if layout.padded() else None
        out = MergedAttention.apply(flash, by_group, *prompt, *own, sizes, scaling)
        merged: Tensor = out.permute(0, 2, 3, 1, 4, 5)
        return merged
    masks = _masks(layout, query, 0, query.shape[4], window)
    return _two_part_attention(query, prompt, own, masks, scaling)


def _extend(
    layout: SharedLayout,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: int | None,
) -> Tensor:
    b, heads, length, d = query.shape
    k, g = key.shape[1], layout.continuations
    r = length // g
    # Padding stands right of what was given, so the causal rule hides it from all that counts.
    keys, values = (x.unflatten(2, (g, r)).transpose(1, 2) for x in (key, value))
    room = (b, g, k, layout.steps, d)
    layout.own_keys[layer] = (key.new_empty(room), value.new_empty(room))
    for kept, new in zip(layout.own_keys[layer], (keys, values), strict=True):
        kept[:, :, :, :r] = new
    if window is not None and layout.prompt_width + r <= window:
        window = None
    own_query = query.reshape(b, k, heads // k, g, r, d)
    out = _own_attention(layout, own_query, layout.prompt_keys[layer], (keys, values), scaling, window)
    return out.reshape(b, heads, length, d).transpose(1, 2)


def _decode(
    layout: SharedLayout,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: int | None,
) -> Tensor:
    b, heads, g, d = query.shape
    k = key.shape[1]
    if layer not in layout.own_keys:
        room = (b, g, k, layout.steps, d)
        layout.own_keys[layer] = (key.new_empty(room), value.new_empty(room))
    keys, values = layout.own_keys[layer]
    keys[:, :, :, layout.position] = key.transpose(1, 2)
    values[:, :, :, layout.position] = value.transpose(1, 2)
    upto = layout.position + 1
    if window is not None and layout.prompt_width + upto <= window:
        window = None
    if layout.given_lengths is not None:
        masks = _gap_masks(layout, query, window)
    elif window is not None:
        masks = _masks(layout, query, layout.position, 1, window)
    else:
        masks = _Masks(_padding(layout, query.dtype), None)
    out = _two_part_attention(
        query.reshape(b, k, heads // k, g, 1, d),
        layout.prompt_keys[layer],
        (keys[..., :upto, :], values[..., :upto, :]),
        masks,
        scaling,
    )
    return out.reshape(b, heads, g, d).transpose(1, 2)


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
    """The function transformers calls; see the module's docstring.

    Args:
        query: ``[B, heads, L, D]``; ``key`` and ``value`` ``[B, key heads, L, D]``, positions applied.
        shared: The row layout; None means an ordinary batch, whose mask knows the window.
        sliding_window: A token sees itself and the ``sliding_window - 1`` before it; None: all.

    Returns:
        ``[B, L, heads, D]`` and None (attention weights are not kept).
    """
    if shared is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast rotary embeddings have made queries and keys wider again.
    query, key = query.to(value.dtype), key.to(value.dtype)
    layer: int = module.layer_idx  # type: ignore[assignment]
    if shared.mode == "decode":
        return _decode(shared, layer, query, key, value, scale, sliding_window), None
    if shared.mode == "extend":
        return _extend(shared, layer, query, key, value, scale, sliding_window), None
    if shared.mode == "prefill":
        shared.prompt_keys[layer] = (key, value)
    return _packed(shared, query, key, value, scale, sliding_window), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
