"""Drawing tokens: what is drawn depends on the seed, the sample and the turn alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfverify.core.trajectory import Finish

_SHORT = 128
"""How many of the most likely tokens are looked at before all are sorted."""
_AS_LIKELY = 1 - 1e-4
"""Probabilities whose ratio is above this count as equal: rounding must not decide which one is cut off."""


@dataclass(slots=True)
class Sample:
    """One sampled continuation: its tokens, their log-probabilities, and how it ended."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish


def derived_seed(*numbers: int) -> int:
    """A seed that depends on ``numbers`` alone: the same in every process and at every time."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def uniforms(seeds: Sequence[int], group_size: int, steps: int, turn: int = 0) -> Tensor:
    """``[B, G, steps]`` float64 numbers in [0, 1): one stream for each problem's seed, sample and turn.

    What a sample draws then depends on its problem's seed, its place in the group and its turn alone: not on
    the length limit, the size of the group, what else is in the batch, or which process samples it.
    """
    rows = [
        [np.random.default_rng([seed, sample, turn]).random(steps) for sample in range(group_size)]
        for seed in seeds
    ]
    return torch.from_numpy(np.array(rows).reshape(len(seeds), group_size, steps))


def pick_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_p: float) -> Tensor:
    """Draw one token per row by inverse transform sampling over the vocabulary in its own order.

    Float64, and the vocabulary's order instead of that of the probabilities: what else is in a batch
    changes the last bits of logits, which then move a token's interval by as little. Two tokens of almost the
    same probability would change places in a sorted order, and another one of them would be drawn.

    Args:
        logits: ``[..., V]``.
        uniform: ``[...]`` in [0, 1).
        temperature: 0 is greedy.
        top_p: Nucleus: the fewest most likely tokens whose probability reaches ``top_p``, and those that are
            as likely as the least likely of them, to within 1e-4 of it.

    Returns:
        ``[...]`` token ids.
    """
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits.double() / temperature).softmax(-1)
    if top_p < 1:
        probs = probs.masked_fill(probs < _AS_LIKELY * _least_likely(probs, top_p), 0.0)
    reached = probs.cumsum(-1)
    place = torch.searchsorted(reached, (uniform.double().unsqueeze(-1) * reached[..., -1:]), right=True)
    # Rounding may reach the whole; the last token with any probability is the last that can be drawn.
    last = (reached < reached[..., -1:]).sum(-1, keepdim=True)
    return torch.minimum(place, last).squeeze(-1)


def _least_likely(probs: Tensor, top_p: float) -> Tensor:
    """The probability ``[..., 1]`` of the least likely token in each row's nucleus."""
    vocabulary = probs.shape[-1]
    # Sorting a vocabulary costs more than a small model's forward pass, and a nucleus is mostly short.
    for length in (min(_SHORT, vocabulary), vocabulary):
        ordered = probs.topk(length, dim=-1).values
        reached = ordered.cumsum(-1)
        if length == vocabulary or bool((reached[..., -1] >= top_p).all()):
            break
    return ordered.masked_fill(reached - ordered >= top_p, 1.0).amin(-1, keepdim=True)
