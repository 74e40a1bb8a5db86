"""Many tokens through the model a few at a time: prompts, and what growing conversations hear.

How much memory that takes depends on `Forward.chunk`, not on how long a prompt or a reply is, nor on how
many conversations hear one; only the keys and values that are kept grow with those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from selfverify.policy.encoding import Prompt
from selfverify.policy.families import ImageInput
from selfverify.policy.forward import Forward
from selfverify.policy.layout import SharedLayout

Row = TypeVar("Row", bound=Hashable)

_SCORES_PER_TOKEN = 4096
"""Attention scores of a layer that may exist at a time, for each token of a chunk."""


def scores_at_once(forward: Forward) -> int:
    """How many attention scores of a layer may exist at a time where tokens grow."""
    return _SCORES_PER_TOKEN * forward.chunk


@dataclass(slots=True)
class Heard:
    """Tokens for the ends of some continuations.

    Args:
        ids_bgr: Tokens, padded on the right.
        positions_abgr: Their position ids.
        kept_bg: How many own tokens each continuation has before.
        most: The largest of ``kept_bg``.
        even: Whether all ``kept_bg`` are equal.
        images: The images among the tokens, row by row.
        owners: The prompts of the rows, named in errors.
    """

    ids_bgr: Tensor
    positions_abgr: Tensor
    kept_bg: Tensor
    most: int
    even: bool
    images: Sequence[ImageInput]
    owners: Sequence[Prompt]


def append(forward: Forward, layout: SharedLayout, heard: Heard) -> Iterator[tuple[int, Tensor]]:
    """Put tokens behind continuations, `Forward.chunk` at a time where an image need not stay whole.

    Yields:
        The number of the first token of each chunk, and the chunk's hidden states ``[B, G, chunk, H]``.
    """
    n, m, width = heard.ids_bgr.shape
    family = forward.family
    places_bgr = forward.image_places(heard.ids_bgr)
    features = None
    if heard.images or bool(places_bgr.any()):
        features = forward.features(heard.images, int(places_bgr.sum()), heard.owners)
    # Features are in the order of the placeholders, row by row.
    order_bgr = (places_bgr.flatten().cumsum(0) - 1).view(places_bgr.shape)
    joined_r = (places_bgr[..., 1:] & places_bgr[..., :-1]).flatten(0, 1).any(0).tolist()
    unbroken = joined_r if family.bidirectional_images else [False] * (width - 1)
    for start, end in chunks(unbroken, max(forward.chunk // (n * m), 1)):
        layout.place(heard.kept_bg + start, heard.most + start, heard.even)
        here = slice(start, end)
        wanted = order_bgr[..., here][places_bgr[..., here]]
        part = features[wanted] if features is not None and len(wanted) else None
        yield start, forward.grow(heard.ids_bgr[..., here], heard.positions_abgr[..., here], layout, part)


def chunks(unbroken: Sequence[bool], size: int) -> Iterator[tuple[int, int]]:
    """Cut a row of tokens into chunks of at most ``size``, or of more where it may not be cut earlier.

    Args:
        unbroken: For each token but the first, whether it has to be in the chunk of the one before it.
        size: The tokens of a chunk.

    Yields:
        First tokens, and ends behind the last ones.
    """
    width, start = len(unbroken) + 1, 0
    cuts = [*(place for place, joined in enumerate(unbroken, 1) if not joined), width]
    while start < width:
        place = bisect_right(cuts, start + size)
        end = cuts[place - 1] if place and cuts[place - 1] > start else cuts[place]
        yield start, end
        start = end


def batches(widths: Mapping[Row, tuple[int, int]], tokens: int) -> list[list[Row]]:
    """Share rows of a grid out to batches, such that few tokens are padding.

    The rows of a batch are forwarded as a grid: of each line of the grid that has any of them as many rows as
    the line that has the most, all as long as the longest.

    Args:
        widths: For each row its line of the grid, and how many tokens it has.
        tokens: The largest number of tokens in a batch, padding included; a row that has more is a batch.
    """
    found: list[list[Row]] = []
    counts: dict[int, int] = {}
    # From the shortest to the longest, so that the last one says how long all are.
    for row, (line, width) in sorted(widths.items(), key=lambda item: item[1][1]):
        wider = counts | {line: counts.get(line, 0) + 1}
        if found and len(wider) * max(wider.values()) * width <= tokens:
            found[-1].append(row)
            counts = wider
        else:
            found.append([row])
            counts = {line: 1}
    return found


def prefill(forward: Forward, prompts: Sequence[Prompt]) -> tuple[Tensor, SharedLayout]:
    """Each prompt's last hidden state ``[B, H]`` and the layout that keeps its keys and values.

    Args:
        forward: The model's forward passes.
        prompts: B prompts of any length.
    """
    lengths = [len(prompt.ids) for prompt in prompts]
    if len(prompts) * max(lengths) <= forward.chunk:
        return forward.prefill(prompts)
    whole = SharedLayout("prefill", torch.tensor(lengths, device=forward.device), max(lengths))
    last: dict[int, Tensor] = {}
    for which in batches({i: (i, length) for i, length in enumerate(lengths)}, forward.chunk):
        few = [prompts[i] for i in which]
        fits = len(which) > 1 or lengths[which[0]] <= forward.chunk
        last_bh, part = forward.prefill(few) if fits else _prefill_long(forward, few[0])
        last |= dict(zip(which, last_bh, strict=True))
        for number in [*part.prompt_keys]:
            _keep(whole, number, part.prompt_keys.pop(number), which)
    return torch.stack([last[i] for i in range(len(prompts))]), whole


def _prefill_long(forward: Forward, prompt: Prompt) -> tuple[Tensor, SharedLayout]:
    """`prefill` of one prompt: it grows like a conversation that has no prompt."""
    device, count = forward.device, len(prompt.ids)
    none_b, none_bg = (torch.zeros(shape, dtype=torch.long, device=device) for shape in ((1,), (1, 1)))
    layout = SharedLayout("grow", none_b, 0, scores_at_once=scores_at_once(forward), least_room=count)
    ids, positions = prompt.ids.to(device)[None, None], prompt.positions.to(device)[:, None, None]
    heard = Heard(ids, positions, none_bg, 0, True, prompt.images, [prompt])
    *_, (_, states_bgrh) = append(forward, layout, heard)
    keys = {number: (k[:, 0], v[:, 0]) for number, (k, v) in layout.own_keys.items()}
    lengths_b = torch.tensor([count], device=device)
    return states_bgrh[:, 0, -1], SharedLayout("prefill", lengths_b, count, prompt_keys=keys)


def _keep(whole: SharedLayout, number: int, pair: tuple[Tensor, Tensor], which: Sequence[int]) -> None:
    """Put a layer's keys and values of the prompts ``which`` among those of all prompts."""
    rows = torch.tensor(which, device=pair[0].device)
    for place, part in enumerate(pair):
        if number not in whole.prompt_keys:
            shape = (len(whole.prompt_lengths), part.shape[1], whole.prompt_width, part.shape[3])
            whole.prompt_keys[number] = (part.new_zeros(shape), part.new_zeros(shape))
        whole.prompt_keys[number][place][rows, :, : part.shape[2]] = part
