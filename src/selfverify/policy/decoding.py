"""How a policy speaks: its output head, and the drawing of tokens.

The `Head` gives logits and log-probabilities of tokens behind hidden states. A `TokenSampler` adds the
settings of sampling and the tokens that end what is said. Draws depend on the seed, the sample and the turn
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import SamplingError
from selfverify.core.trajectory import Finish

_SHORT = 128
"""How many of the most likely tokens are looked at before all are sorted, which costs more than a small
model's forward pass; a nucleus is mostly short."""
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


def uniform_draws(seed: int, sample: int, turn: int, steps: int) -> Tensor:
    """``[steps]`` float64 numbers in [0, 1), one stream for each problem's seed, sample and turn.

    The draws of a sample then depend on its problem's seed, its place in the group and its turn alone: not on
    the length limit, the size of the group, what else is in the batch, or which process samples it.
    """
    return torch.from_numpy(np.random.default_rng([seed, sample, turn]).random(steps))


def pick_tokens(
    logits: Tensor, uniform: Tensor, temperature: float, top_p: float, most: int | None = None
) -> tuple[Tensor, Tensor]:
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
        most: How many of the most likely tokens are looked at for the nucleus; None is all.

    Returns:
        ``[...]`` token ids, and ``[...]`` True where the nucleus lies within the ``most``: other ids are
        wrong.
    """
    sure = torch.ones_like(uniform, dtype=torch.bool)
    if temperature == 0:
        return logits.argmax(-1), sure
    probs = (logits.double() / temperature).softmax(-1)
    if top_p < 1:
        ordered = probs.topk(min(most or probs.shape[-1], probs.shape[-1]), dim=-1).values
        reached = ordered.cumsum(-1)
        least = ordered.masked_fill(reached - ordered >= top_p, 1.0).amin(-1, keepdim=True)
        sure = reached[..., -1] >= top_p
        probs = probs.masked_fill(probs < _AS_LIKELY * least, 0.0)
    reached = probs.cumsum(-1)
    place = torch.searchsorted(reached, (uniform.double().unsqueeze(-1) * reached[..., -1:]), right=True)
    # Rounding may reach the whole; the last token with any probability is the last that can be drawn.
    last = (reached < reached[..., -1:]).sum(-1, keepdim=True)
    return torch.minimum(place, last).squeeze(-1), sure


class Head:
    """The output head of ``model``; at most ``rows`` rows of its logits exist at a time."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model = model
        self.rows = rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., H]``, scaled or capped as the model's settings say."""
        module: nn.Module = self.model.get_output_embeddings()
        logits: Tensor = module(hidden)
        c = self.model.config.get_text_config()
        if (divisor := getattr(c, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        if (factor := getattr(c, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (cap := getattr(c, "final_logit_softcapping", None)) is not None:  # Gemma 2, Gemma 3n
            logits = torch.tanh(logits / cap) * cap
        return logits

    def logprobs(self, hidden: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        """Float32 log-probabilities of ``tokens``, ``[N]`` or ``[N, K]``, from hidden states ``[N, H]``.

        The backward pass computes logits again where there are too many rows to keep them. A temperature of
        0 is read as 1.
        """

        def chunk(states: Tensor, wanted: Tensor) -> Tensor:
            logits = self.logits(states).float()
            if temperature not in (0.0, 1.0):  # a division by 1 costs as much as any other
                logits = logits / temperature
            columns = wanted if wanted.dim() == 2 else wanted[:, None]
            picked: Tensor = logits.gather(-1, columns) - logits.logsumexp(-1, keepdim=True)
            return picked.view(wanted.shape)

        if len(hidden) <= self.rows:
            return chunk(hidden, tokens)
        parts = [
            checkpoint(chunk, states, wanted, use_reentrant=False)
            for states, wanted in zip(hidden.split(self.rows), tokens.split(self.rows), strict=True)
        ]
        return torch.cat(parts)


@dataclass(slots=True)
class TokenSampler:
    """How the policy speaks: what drawing its tokens needs beside its forward passes.

    Args:
        head: The output head.
        sampling: Group size, temperature, top-p, length limit of what is said at a time.
        stop: ``[S]`` tokens that end what is said.
        suppressed: ``[N]`` tokens that are never drawn.
        name: The policy's name in errors.
    """

    head: Head
    sampling: SamplingConfig
    stop: Tensor
    suppressed: Tensor
    name: str

    def pick(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw next tokens.

        The host waits once for the device: for where a token ends what is said and, in the same tensor, for
        which nuclei are longer than what was looked at; for those once more.

        Where a logit is NaN or infinite, the token means nothing and its log-probability is NaN:
        `require_finite` looks at those of whole samples, since a look at each token would keep the host
        waiting.

        Args:
            logits: ``[..., V]``.
            uniform: ``[...]`` in [0, 1).

        Returns:
            Tokens ``[...]``; their log-probabilities under the temperature, before top-p; and, on the CPU,
            whether they are ends.
        """
        logits = logits.float()
        free = logits.index_fill(-1, self.suppressed, float("-inf")) if len(self.suppressed) else logits
        temperature, top_p = self.sampling.temperature, self.sampling.top_p
        tokens, sure = pick_tokens(free, uniform, temperature, top_p, _SHORT)
        ends, sure = torch.stack([torch.isin(tokens, self.stop), sure]).cpu()
        if not bool(sure.all()):
            tokens[~sure], _ = pick_tokens(free[~sure], uniform[~sure], temperature, top_p)
            ends = torch.isin(tokens, self.stop).cpu()
        scaled = logits / temperature if temperature > 0 else logits
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
        return tokens, chosen, ends


def require_finite(samples: Iterable[Sample], name: str) -> None:
    """Refuse samples that were drawn from logits which are not finite.

    Args:
        samples: Samples of a policy.
        name: The policy's name in the error.

    Raises:
        SamplingError: A token has no finite log-probability.
    """
    for sample in samples:
        if not all(map(math.isfinite, sample.logprobs)):
            raise not_finite(name)


def not_finite(name: str) -> SamplingError:
    """Return the error of a policy whose logits are NaN or infinite."""
    return SamplingError(
        f"policy {name}: its logits are not finite, so that what it samples means nothing. Its weights are "
        "damaged, or their dtype is too narrow: take an earlier checkpoint, or set policy.dtype=float32"
    )


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """A context after which torch's global random generators are as they were before.

    There is one of the CPU, and one of each other device, such as ``device``.
    """
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        yield
