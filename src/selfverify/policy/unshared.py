"""Sampling by transformers' ``generate``, for models of which no prompt can be shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.sampling import Sample


def generate(
    model: Any,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    seeds: Sequence[int],
    stop: set[int],
    suppressed: list[int],
) -> list[list[Sample]]:
    """B lists of G samples, without log-probabilities: the caller computes them.

    ``generate`` draws from torch's global generator; it is seeded prompt by prompt and given back as it was.
    """
    groups = []
    devices = [model.device] if model.device.type == "cuda" else []
    for prompt, seed in zip(prompts, seeds, strict=True):
        ids = prompt.ids[None].to(model.device)
        tensors = {k: v.to(model.device) for image in prompt.images for k, v in image.tensors.items()}
        drawn: dict[str, Any] = {"do_sample": sampling.temperature > 0}
        if sampling.temperature > 0:
            drawn |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=sampling.max_new_tokens,
                num_return_sequences=sampling.group_size if sampling.temperature > 0 else 1,
                eos_token_id=sorted(stop),
                suppress_tokens=suppressed or None,
                **drawn,
                **tensors,
            )
        rows = out[:, ids.shape[1] :].tolist()
        if len(rows) < sampling.group_size:
            rows = rows * sampling.group_size
        groups.append([_sample(row, stop) for row in rows])
    return groups


def _sample(row: list[int], stop: set[int]) -> Sample:
    """Up to and with the first stop token; what follows is padding."""
    end = next((i + 1 for i, token in enumerate(row) if token in stop), None)
    return Sample(row[:end], [], "length" if end is None else "stop")
