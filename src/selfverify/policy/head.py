"""The output head: from hidden states to logits and to log-probabilities of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
            logits = self.logits(states).float() / (temperature or 1.0)
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
