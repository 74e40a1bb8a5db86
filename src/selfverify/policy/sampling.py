"""Sampling: one prefill per problem, then its G continuations decoded as a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.encoding import Prompt
from selfverify.policy.forward import Forward
from selfverify.policy.head import Head
from selfverify.policy.shared_attention import SharedLayout

GivenUp = Callable[[], Collection[int]]
"""Returns the places of those problems in a batch that need no more samples."""

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


class Decoder:
    """Decodes a batch of prompts; ended rows leave the batch once that saves a fifth of it."""

    def __init__(
        self,
        forward: Forward,
        head: Head,
        sampling: SamplingConfig,
        stop: set[int],
        suppressed: list[int],
    ) -> None:
        self.forward, self.head = forward, head
        self.sampling = sampling
        self.stop = torch.tensor(sorted(stop), dtype=torch.long, device=forward.device)
        self.suppressed = torch.tensor(suppressed, dtype=torch.long, device=forward.device)

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens ``[B, G]`` and their log-probabilities under the temperature, before top-p."""
        logits = self.head.logits(hidden).float()
        free = logits.index_fill(-1, self.suppressed, float("-inf")) if len(self.suppressed) else logits
        temperature = self.sampling.temperature
        tokens = pick_tokens(free, uniform, temperature, self.sampling.top_p)
        scaled = logits / temperature if temperature > 0 else logits
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
        return tokens, chosen

    def sample(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], given_up: GivenUp | None = None
    ) -> list[list[Sample]]:
        """B lists of G samples; each prompt is prefilled once. See `go_on` for ``given_up``."""
        return self.behind(*self.forward.prefill(prompts), self.forward.starts(prompts), seeds, given_up)

    def behind(
        self,
        last_hidden: Tensor,
        prefilled: SharedLayout,
        starts: Tensor,
        seeds: Sequence[int],
        given_up: GivenUp | None = None,
    ) -> list[list[Sample]]:
        """Sample behind prefilled prompts.

        Args:
            last_hidden: ``[B, H]`` hidden state of each prompt's last token.
            prefilled: The prompts' layout.
            starts: ``[B]`` position of the first new token.
            seeds: One per problem.
            given_up: See `go_on`.

        Returns:
            B lists of G samples.
        """
        b, g, steps = len(seeds), self.sampling.group_size, self.sampling.max_new_tokens
        hidden = last_hidden[:, None].expand(b, g, -1)
        draws = uniforms(seeds, g, steps)
        layout = prefilled.to_decode(g, steps)
        return self.go_on(hidden, layout, starts[:, None].expand(b, g), draws, given_up=given_up)

    def go_on(
        self,
        hidden: Tensor,
        layout: SharedLayout,
        starts: Tensor,
        draws: Tensor,
        wanted: Tensor | None = None,
        given_up: GivenUp | None = None,
    ) -> list[list[Sample]]:
        """Sample on from where each continuation is.

        Args:
            hidden: ``[B, G, H]`` hidden state of each continuation's last token.
            layout: The layout to decode with; it is changed.
            starts: ``[B, G]`` position of the first new token.
            draws: ``[B, G, steps]`` of `uniforms`.
            wanted: ``[B, G]`` bool: the continuations to go on with, whose samples alone mean something;
                None goes on with all.
            given_up: Called before every token; samples of the problems that it returns are cut off there.

        Returns:
            B lists of G samples.
        """
        device = hidden.device
        b, g, steps = draws.shape
        draws = draws.to(device)
        tokens = torch.zeros(b, g, steps, dtype=torch.long, device=device)
        logprobs = torch.zeros(b, g, steps, device=device)
        ended = torch.full((b, g), -1, dtype=torch.long, device=device)
        if wanted is not None:
            ended[~wanted] = 0
        problems = torch.arange(b, device=device)
        slots = torch.arange(g, device=device).expand(b, g)
        for step in range(steps):
            rows = problems[:, None]
            if given_up is not None:
                for problem in given_up():
                    ended[problem] = torch.where(ended[problem] < 0, step, ended[problem])
            chosen, chosen_logprobs = self.choose(hidden, draws[rows, slots, step])
            tokens[rows, slots, step] = chosen
            logprobs[rows, slots, step] = chosen_logprobs
            ends = torch.isin(chosen, self.stop) & (ended[rows, slots] < 0)
            ended[rows, slots] = torch.where(ends, step, ended[rows, slots])
            alive = ended[rows, slots] < 0
            if step + 1 == steps or not bool(alive.any()):
                break
            keep = self._smaller(alive)
            if keep is not None:
                which, places = keep
                layout = layout.select(which, places)
                chosen, slots = chosen[which[:, None], places], slots[which[:, None], places]
                problems = problems[which]
            positions = starts[problems[:, None], slots] + step
            hidden = self.forward.decode_step(chosen, positions, layout)
            layout.position += 1
        lengths = torch.where(ended >= 0, ended + 1, steps).tolist()
        return [
            [
                Sample(
                    tokens[i, j, : lengths[i][j]].tolist(),
                    logprobs[i, j, : lengths[i][j]].tolist(),
                    Finish.STOP if ended[i, j] >= 0 else Finish.LENGTH,
                )
                for j in range(g)
            ]
            for i in range(b)
        ]

    @staticmethod
    def _smaller(alive: Tensor) -> tuple[Tensor, Tensor] | None:
        """Problems and slots to keep when dropping ended rows saves at least a fifth of the batch."""
        counts = alive.sum(1)
        width = int(counts.max())
        which = counts.nonzero().squeeze(1)
        if width * len(which) > 0.8 * alive.numel():
            return None
        # Ended rows fill up groups that have fewer living ones; their tokens are ignored.
        places = alive[which].to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :width]
        return which, places
