"""Attention of new tokens to their prompt's keys and to their own continuation's, with scores written out.

This is for what no flash kernel takes: tokens behind kept ones, sliding windows, images whose tokens see each
other both ways. Where tokens grow, few scores and masks exist at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfverify.policy.layout import Masks, SharedLayout


def two_part_attention(
    layout: SharedLayout,
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    window: int | None,
    scale: float,
) -> Tensor:
    """One softmax over the prompt's keys and a continuation's own.

    Args:
        layout: Says who sees what, and how many scores may exist at a time.
        query: ``[B, K, N, G, R, D]``: K key heads, N query heads per key head, R new tokens.
        prompt: Keys and values ``[B, K, P, D]``.
        own: Keys and values ``[B, G, K, T, D]``.
        window: The sliding window, or None.
        scale: Factor of the scores.

    Returns:
        ``[B, K, N, G, R, D]``.
    """
    count, keys = query.shape[4], prompt[0].shape[2] + own[0].shape[3]
    size = count
    if layout.scores_at_once is not None:
        per_token = query[..., 0, 0].numel() * keys
        size = min(count, max(layout.scores_at_once // per_token, 1))
    if size == count:
        # The same in every layer with the same window.
        if window not in layout.masks:
            layout.masks[window] = _masks(layout, query, window, 0, count)
        return _attention(query, prompt, own, layout.masks[window], scale)
    out = torch.empty_like(query)
    for start in range(0, count, size):
        end = min(start + size, count)
        part = query[..., start:end, :]
        # What stands behind these tokens is hidden from them, unless an image sees itself both ways.
        seen = own[0].shape[3] - (count - end if layout.own_images is None else 0)
        near = own[0][:, :, :, :seen], own[1][:, :, :, :seen]
        masks = _masks(layout, part, window, start, seen - layout.longest)
        out[..., start:end, :] = _attention(part, prompt, near, masks, scale)
    return out


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest number where ``hidden``, else 0: rows that see nothing stay finite."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(
        hidden, torch.finfo(dtype).min
    )


def same_image(images: Tensor, others: Tensor) -> Tensor:
    """``[..., L]`` and ``[..., M]`` to ``[..., L, M]``: whether two tokens belong to one image."""
    return (images[..., :, None] == others[..., None, :]) & (images[..., :, None] >= 0)


def _masks(layout: SharedLayout, query: Tensor, window: int | None, start: int, new: int) -> Masks:
    """What is added to the scores of new tokens; None where they see everything.

    Args:
        layout: The layout of all R new tokens.
        query: The queries of Q new tokens, as in `two_part_attention`.
        window: The sliding window, or None.
        start: The first of the Q among the R.
        new: How many of the R have a key here.

    Returns:
        ``[B, 1, 1, G or 1, Q or 1, P]`` for the prompt's keys, ``[1 or B, 1, 1, 1 or G, Q, T]`` for a
        continuation's own.
    """
    count, dtype = query.shape[4], query.dtype
    ends = layout.prompt_lengths[:, None, None, None, None, None]
    before = torch.arange(layout.prompt_width, device=query.device)
    prompt = before >= ends if layout.sizes() else None
    first = start + (layout.longest if layout.even else 0)
    if count == new == 1 and window is None and layout.even:
        return None if prompt is None else _hide(prompt, dtype), None
    columns = torch.arange(layout.longest + new, device=query.device)
    queries = torch.arange(first, first + count, device=query.device)[:, None]  # [..., Q, 1]
    if not layout.even:
        assert layout.starts is not None
        queries = layout.starts[:, None, None, :, None, None] + queries
    hidden = columns > queries
    if layout.own_images is not None:
        both_ways = _seen_both_ways(layout, layout.own_images, slice(start, start + count), len(columns))
        hidden = hidden & ~both_ways[:, None, None]
    if window is not None:
        hidden = hidden | (queries - columns >= window)
        far = ends + queries - before >= window
        prompt = far if prompt is None else prompt | far
    return None if prompt is None else _hide(prompt, dtype), _hide(hidden, dtype)


def _seen_both_ways(layout: SharedLayout, images: Tensor, which: slice, columns: int) -> Tensor:
    """``[B, G, Q, columns]`` whether a new token of ``which`` and an own key belong to one image."""
    same = same_image(images[..., which], images)
    if layout.starts is None:
        return same
    b, g, q, r = same.shape
    places = layout.starts[..., None] + torch.arange(r, device=same.device)
    return same.new_zeros(b, g, q, columns).scatter(3, places[:, :, None].expand(b, g, q, r), same)


def _attention(
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    masks: Masks,
    scale: float,
) -> Tensor:
    """See `two_part_attention`."""
    b, k, n, g, q, d = query.shape
    width = prompt[0].shape[2]
    scores_prompt = torch.matmul(query.reshape(b, k, n * g * q, d) * scale, prompt[0].transpose(2, 3))
    scores_prompt = scores_prompt.view(b, k, n, g, q, width)
    # Own keys differ by continuation: bring G beside B, and the N query heads into the rows.
    own_query = query.permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, d) * scale
    scores_own = torch.matmul(own_query, own[0].transpose(3, 4)).view(b, g, k, n, q, -1)
    scores_own = scores_own.permute(0, 2, 3, 1, 4, 5)
    for part, mask in zip((scores_prompt, scores_own), masks, strict=True):
        if mask is not None:
            part.add_(mask)
    scores = torch.cat([scores_prompt, scores_own], dim=-1)
    del scores_prompt, scores_own, part  # each is as large as all that follows
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    del scores
    weights = weights.to(query.dtype)
    out = torch.matmul(weights[..., :width].reshape(b, k, n * g * q, width), prompt[1]).view(b, k, n, g, q, d)
    own_weights = weights[..., width:].permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, -1)
    own_out = torch.matmul(own_weights, own[1]).view(b, g, k, n, q, d)
    return out + own_out.permute(0, 2, 3, 1, 4, 5)
