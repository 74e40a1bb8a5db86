"""How a policy speaks: its output head, its sampling settings, the tokens that end what it says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import SamplingError
from selfverify.policy.head import Head
from selfverify.policy.sampling import Sample, pick_tokens


@dataclass(slots=True)
class TokenSampler:
    """How the policy speaks: what drawing its tokens needs beside its forward passes.

    Args:
        head: The output head.
        sampling: Group size, temperature, top-p, length limit of what is said at a time.
        stop: ``[S]`` tokens that end what is said.
        suppressed: ``[N]`` tokens that are never drawn.
        name: What errors call the policy.
    """

    head: Head
    sampling: SamplingConfig
    stop: Tensor
    suppressed: Tensor
    name: str

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """`pick` behind hidden states ``[..., H]``."""
        return self.pick(self.head.logits(hidden).float(), uniform)

    def pick(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens ``[...]`` and their log-probabilities under the temperature, before top-p.

        Where a logit is NaN or infinite, the token means nothing and its log-probability is NaN:
        `require_finite` looks at those of whole samples, since a look at each token would keep the host
        waiting.

        Args:
            logits: ``[..., V]``, float32.
            uniform: ``[...]`` in [0, 1).
        """
        free = logits.index_fill(-1, self.suppressed, float("-inf")) if len(self.suppressed) else logits
        temperature = self.sampling.temperature
        tokens = pick_tokens(free, uniform, temperature, self.sampling.top_p)
        scaled = logits / temperature if temperature > 0 else logits
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
        return tokens, chosen


def require_finite(samples: Iterable[Sample], name: str) -> None:
    """Refuse samples that were drawn from logits which are not finite.

    Args:
        samples: What a policy has said.
        name: What the error calls the policy.

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
