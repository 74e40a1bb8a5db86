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
_LEAST_ROOM = 64
"""Own tokens that there is room for at first."""


@dataclass(slots=True)
class SharedLayout:
    """How a row is laid out, and for generation the keys and values seen so far.

    Args:
        mode: ``packed`` (prompt and continuations in one forward), ``prefill`` (prompts only, their keys
            and values are kept) or ``grow`` (new tokens of each of the G continuations, equally many; shorter
            ones are padded on the right).
        prompt_lengths: ``[B]`` true prompt lengths; prompts are padded on the right to P.
        prompt_width: P.
        continuations: G.
        prompt_keys: Keys and values ``[B, K, P, D]`` of each layer (``prefill``, ``grow``).
        own_keys: Keys and values ``[B, G, K, room, D]`` of each layer (``grow``), without gaps.
        starts: ``[B, G]`` how many own tokens each continuation has before the new ones (``grow``).
        longest: The largest of ``starts``, known without asking the device.
        even: Whether all ``starts`` are equal.
        prompt_images: ``[B, P]`` number of the image that a token belongs to, -1 for text, where an image's
            tokens see each other both ways; None where every token sees only what stands before it.
        own_images: ``[B, G, R]`` the same of the continuations' new tokens.
    """

    mode: Literal["packed", "prefill", "grow"]
    prompt_lengths: Tensor
    prompt_width: int
    continuations: int = 1
    prompt_keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    own_keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    starts: Tensor | None = None
    longest: int = 0
    even: bool = True
    prompt_images: Tensor | None = None
    own_images: Tensor | None = None
    _sizes: list[int] | None = None
    _masks: dict[int | None, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)

    def sizes(self) -> list[int] | None:
        """The prompt lengths if any prompt is padded; fetched from the device once, as every layer asks."""
        if self._sizes is None:
            self._sizes = self.prompt_lengths.tolist()
        return self._sizes if any(size != self.prompt_width for size in self._sizes) else None

    def to_grow(self, continuations: int) -> SharedLayout:
        """The layout of ``continuations`` without any token yet behind each prefilled prompt."""
        lengths, width = self.prompt_lengths, self.prompt_width
        return SharedLayout("grow", lengths, width, continuations, prompt_keys=self.prompt_keys)

    def place(self, starts: Tensor, longest: int, even: bool, own_images: Tensor | None = None) -> None:
        """Say where the tokens of the next forward stand; see the class for the arguments."""
        self.starts, self.longest, self.even, self.own_images = starts, longest, even, own_images
        self._masks.clear()

    def select(self, problems: Tensor, slots: Tensor) -> SharedLayout:
        """A copy of the rows of ``problems`` [B'] and of each the continuations ``slots`` [B', G']."""
        rows = problems[:, None]
        return SharedLayout(
            self.mode,
            self.prompt_lengths[problems],
            self.prompt_width,
            slots.shape[1],
            {i: (k[problems], v[problems]) for i, (k, v) in self.prompt_keys.items()},
            {i: (k[rows, slots], v[rows, slots]) for i, (k, v) in self.own_keys.items()},
        )

    def put_back(self, copy: SharedLayout, problems: Tensor, slots: Tensor, first: int, end: int) -> None:
        """Take the own keys in columns ``first`` to ``end`` from a `select`ed copy that has grown since."""
        rows = problems[:, None]
        for number, theirs in copy.own_keys.items():
            self._make_room(number, theirs, end)
            for mine, grown in zip(self.own_keys[number], theirs, strict=True):
                mine[rows, slots, :, first:end] = grown[:, :, :, first:end]

    def _make_room(self, number: int, like: tuple[Tensor, Tensor], columns: int) -> None:
        """Room for ``columns`` own tokens in layer ``number``; it grows by doubling."""
        kept = self.own_keys.get(number)
        have = 0 if kept is None else kept[0].shape[3]
        if have >= columns:
            return
        room = max(columns, 2 * have, _LEAST_ROOM)
        grown = []
        for place, tensor in enumerate(like):
            b, g = len(self.prompt_lengths), self.continuations
            # Zeros: a mask hides what nobody has written, and must not meet a NaN.
            wider = tensor.new_zeros(b, g, tensor.shape[2], room, tensor.shape[4])
            if kept is not None:
                wider[:, :, :, :have] = kept[place]
            grown.append(wider)
        self.own_keys[number] = (grown[0], grown[1])

    def add(self, number: int, new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keep the new tokens' keys and values ``[B, G, K, R, D]``; all that the rows have is returned."""
        assert self.starts is not None
        r, end = new[0].shape[3], self.longest + new[0].shape[3]
        self._make_room(number, new, end)
        for kept, fresh in zip(self.own_keys[number], new, strict=True):
            if self.even:
                kept[:, :, :, self.longest : end] = fresh
            else:
                columns = self.starts[..., None] + torch.arange(r, device=fresh.device)
                kept.scatter_(3, columns[:, :, None, :, None].expand_as(fresh), fresh)
        keys, values = self.own_keys[number]
        return keys[:, :, :, :end], values[:, :, :, :end]


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


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest number where ``hidden``, else 0: rows that see nothing stay finite."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(
        hidden, torch.finfo(dtype).min
    )


def _same_image(images: Tensor) -> Tensor:
    """``[..., L]`` to ``[..., L, L]``: whether two tokens belong to one image."""
    return (images[..., :, None] == images[..., None, :]) & (images[..., :, None] >= 0)


def _masks(layout: SharedLayout, query: Tensor, window: int | None) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores of the new tokens; None where they see everything.

    Returns:
        ``[B, 1, 1, G or 1, Q or 1, P]`` for the prompt's keys, ``[1 or B, 1, 1, 1 or G, Q, T]`` for a
        continuation's own.
    """
    count, dtype = query.shape[4], query.dtype
    ends = layout.prompt_lengths[:, None, None, None, None, None]
    before = torch.arange(layout.prompt_width, device=query.device)
    prompt = before >= ends if layout.sizes() else None
    first = layout.longest if layout.even else 0
    if count == 1 and window is None and layout.even:
        return None if prompt is None else _hide(prompt, dtype), None
    columns = torch.arange(layout.longest + count, device=query.device)
    queries = torch.arange(first, first + count, device=query.device)[:, None]  # [..., Q, 1]
    if not layout.even:
        assert layout.starts is not None
        queries = layout.starts[:, None, None, :, None, None] + queries
    hidden = columns > queries
    if layout.own_images is not None:
        hidden = hidden & ~_seen_both_ways(layout, len(columns))[:, None, None]
    if window is not None:
        hidden = hidden | (queries - columns >= window)
        far = ends + queries - before >= window
        prompt = far if prompt is None else prompt | far
    return None if prompt is None else _hide(prompt, dtype), _hide(hidden, dtype)


def _seen_both_ways(layout: SharedLayout, columns: int) -> Tensor:
    """``[B, G, R, columns]`` whether a new token and an own key belong to one image."""
    assert layout.own_images is not None
    same = _same_image(layout.own_images)
    if layout.starts is None:
        return same
    b, g, r, _ = same.shape
    places = layout.starts[..., None] + torch.arange(r, device=same.device)
    return same.new_zeros(b, g, r, columns).scatter(3, places[:, :, None].expand(b, g, r, r), same)


def _two_part_attention(
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    masks: tuple[Tensor | None, Tensor | None],
    scale: float,
) -> Tensor:
    """One softmax over the prompt's keys and a continuation's own.

    Args:
        query: ``[B, K, N, G, Q, D]``: K key heads, N query heads per key head, Q new tokens.
        prompt: Keys and values ``[B, K, P, D]``.
        own: Keys and values ``[B, G, K, T, D]``.
        masks: Of `_masks`.
        scale: Factor of the scores.

    Returns:
        ``[B, K, N, G, Q, D]``.
    """
    b, k, n, g, q, d = query.shape
    width = prompt[0].shape[2]
    scores_prompt = torch.matmul(query.reshape(b, k, n * g * q, d) * scale, prompt[0].transpose(2, 3))
    scores_prompt = scores_prompt.view(b, k, n, g, q, width)
    # Own keys differ by continuation: bring G beside B, and the N query heads into the rows.
    own_query = query.permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, d) * scale
    scores_own = torch.matmul(own_query, own[0].transpose(3, 4)).view(b, g, k, n, q, -1)
    scores_own = scores_own.permute(0, 2, 3, 1, 4, 5)
    scores_prompt, scores_own = (
        scores if mask is None else scores + mask
        for scores, mask in zip((scores_prompt, scores_own), masks, strict=True)
    )
    scores = torch.cat([scores_prompt, scores_own], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = weights.to(query.dtype)
    out = torch.matmul(weights[..., :width].reshape(b, k, n * g * q, width), prompt[1]).view(b, k, n, g, q, d)
    own_weights = weights[..., width:].permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, -1)
    own_out = torch.matmul(own_weights, own[1]).view(b, g, k, n, q, d)
    return out + own_out.permute(0, 2, 3, 1, 4, 5)


def _own_attention(
    layer: _Layer, query: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
) -> Tensor:
    """The continuations' new tokens; see `_two_part_attention` for the shapes."""
    layout, count = layer.layout, query.shape[4]
    window = layer.narrow_window(layout.prompt_width + own[0].shape[3])
    whole = count == own[0].shape[3] and count > 1
    flash = flash_for(query) if whole and window is None and layout.own_images is None else None
    if flash is None:
        # The same in every layer with the same window.
        if window not in layout._masks:
            layout._masks[window] = _masks(layout, query, window)
        return _two_part_attention(query, prompt, own, layout._masks[window], layer.scale)
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
            near = (near | _same_image(layout.prompt_images))[:, None]
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
    own = layout.add(layer.number, new)
    query = layer.query.reshape(b, k, heads // k, g, r, d)
    out = _own_attention(layer, query, layout.prompt_keys[layer.number], own)
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
        shared.prompt_keys[number] = (key, value)
    layer = _Layer(shared, number, query, key, value, scale, sliding_window)
    return (_grow if shared.mode == "grow" else _packed)(layer), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
