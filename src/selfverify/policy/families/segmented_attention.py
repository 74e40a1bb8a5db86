"""Attention of vision towers in which patches attend to their own image only, or to a window of it.

A tower gets the patches of all images in one row. transformers computes one segment (window or image) after
another: 1,796 calls for one image of 1,024 tokens in Qwen2.5-VL. Segments of one length are as independent as
the rows of a batch, so here a layer makes one call for each length (32 calls for the same image).

`SEGMENTED` is registered with transformers. A tower that computes with it is given, by the name ``segments``,
the `Segments` of each of its attention modules, and ``cu_seqlens`` that make the row one segment, so that the
modules pass it on as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SEGMENTED = "selfverify_segmented"


class Segments:
    """Which patches of a row of S attend to each other; worked out once for all layers.

    Args:
        boundaries: ``[segments + 1]`` on the CPU, from 0 to S: where each segment begins and the last ends.
        device: Where the tower is.
    """

    def __init__(self, boundaries: Tensor, device: torch.device) -> None:
        starts, lengths = boundaries[:-1].long(), boundaries.diff().long()
        self.row = boundaries[[0, -1]]
        """``[2]`` on the CPU: the boundaries of the row as a whole."""
        alike = [(int(length), starts[lengths == length]) for length in lengths.unique()]
        places = [(first[:, None] + torch.arange(length)).flatten() for length, first in alike]
        order = torch.cat(places)
        self._groups: list[tuple[int, slice | Tensor]] = []
        for (length, _), own in zip(alike, places, strict=True):
            begin, end = int(own[0]), int(own[-1]) + 1
            # Neighbours need no copy.
            self._groups.append((length, slice(begin, end) if end - begin == len(own) else own.to(device)))
        in_order = bool((order.diff() == 1).all())
        self._back = None if in_order else order.argsort().to(device)

    def attend(self, module: nn.Module, row: tuple[Tensor, Tensor, Tensor], **options: Any) -> Tensor:
        """Attention ``[1, S, heads, D]`` within each segment.

        Args:
            module: The attention of a layer.
            row: Queries, keys and values, each ``[1, heads, S, D]``, positions applied.
            options: Passed on to transformers' own attention.
        """
        parts = []
        for length, places in self._groups:
            batch = [
                _at(x[0].transpose(0, 1), places).unflatten(0, (-1, length)).transpose(1, 2) for x in row
            ]  # each [segments, heads, length, D]
            parts.append(sdpa_attention_forward(module, *batch, None, **options)[0].flatten(0, 1))
        joined = torch.cat(parts)
        return (joined if self._back is None else joined.index_select(0, self._back))[None]


def _at(patches: Tensor, places: slice | Tensor) -> Tensor:
    return patches[places] if isinstance(places, slice) else patches.index_select(0, places)


def segmented_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Mapping[int, Segments] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer of a tower.

    Args:
        module: The layer's attention.
        query: ``[1, heads, S, D]``, like ``key`` and ``value``; positions are applied.
        key: See ``query``.
        value: See ``query``.
        attention_mask: For calls without segments.
        segments: By the `id` of attention modules; None computes what transformers would.
        kwargs: Passed on to transformers' own attention.

    Returns:
        ``[1, S, heads, D]`` and None (attention weights are not kept).
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return segments[id(module)].attend(module, (query, key, value), **kwargs), None


ALL_ATTENTION_FUNCTIONS.register(SEGMENTED, segmented_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(SEGMENTED, sdpa_mask)
