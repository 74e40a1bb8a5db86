"""How a policy speaks: its output head, its sampling settings, the tokens that end what it says."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from selfverify.core.sampling_settings import SamplingConfig
from selfverify.policy.head import Head
from selfverify.policy.sampling import pick_tokens


@dataclass(slots=True)
class Voice:
    """How the policy speaks: what drawing its tokens needs beside its forward passes.

    Args:
        head: The output head.
        sampling: Group size, temperature, top-p, length limit of what is said at a time.
        stop: ``[S]`` tokens that end what is said.
        suppressed: ``[N]`` tokens that are never drawn.
    """

    head: Head
    sampling: SamplingConfig
    stop: Tensor
    suppressed: Tensor

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens ``[...]`` and their log-probabilities under the temperature, before top-p."""
        logits = self.head.logits(hidden).float()
        free = logits.index_fill(-1, self.suppressed, float("-inf")) if len(self.suppressed) else logits
        temperature = self.sampling.temperature
        tokens = pick_tokens(free, uniform, temperature, self.sampling.top_p)
        scaled = logits / temperature if temperature > 0 else logits
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
        return tokens, chosen
