"""Sampling by transformers' ``generate``, for models whose prompts cannot be shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.generators import kept_generators
from selfverify.policy.sampling import Sample


def sample_unshared(
    model: Any,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    seeds: Sequence[int],
    stop: set[int],
    suppressed: list[int],
    logprobs: Callable[..., Tensor],
) -> list[list[Sample]]:
    """Return B lists of G samples. Their log-probabilities are those of ``logprobs``, `Policy.logprobs`."""
    groups = _generate(model, prompts, sampling, seeds, stop, suppressed)
    tokens = [[sample.tokens for sample in group] for group in groups]
    values = logprobs(prompts, tokens, temperature=sampling.temperature)
    for group, rows in zip(groups, values.tolist(), strict=True):
        for sample, row in zip(group, rows, strict=False):
            sample.logprobs = row[: len(sample.tokens)]
    return groups


def _generate(
    model: Any,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    seeds: Sequence[int],
    stop: set[int],
    suppressed: list[int],
) -> list[list[Sample]]:
    """Return B lists of G samples, without log-probabilities.

    transformers' ``generate`` draws from torch's global generator. The generator is seeded for each prompt,
    and is afterwards as it was before.
    """
    groups = []
    # The checkpoint's own settings (penalties, other cuts) would sample from another distribution.
    settings = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=sorted(stop),
        pad_token_id=model.generation_config.pad_token_id,
        suppress_tokens=suppressed or None,
        do_sample=sampling.temperature > 0,
    )
    if sampling.temperature > 0:
        settings.update(temperature=sampling.temperature, top_p=sampling.top_p, top_k=0)
    room = longest_row(model)
    for prompt, seed in zip(prompts, seeds, strict=True):
        if room is not None:
            # A model with learned positions has none beyond its context.
            settings.max_new_tokens = max(1, min(sampling.max_new_tokens, room - len(prompt.ids)))
        ids = prompt.ids.to(model.device).repeat(sampling.group_size, 1)
        # A row needs all images of the prompt in turn. `generate` itself would repeat image by image.
        tensors = {
            name: tensor.to(model.device).repeat(sampling.group_size, *[1] * (tensor.dim() - 1))
            for image in prompt.images
            for name, tensor in image.tensors.items()
        }
        with kept_generators(model.device):
            torch.manual_seed(seed)
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings, **tensors
            )
        groups.append([_sample(row, stop) for row in out[:, ids.shape[1] :].tolist()])
    return groups


def _sample(row: list[int], stop: set[int]) -> Sample:
    """Return the tokens up to and with the first stop token. What follows that token is padding."""
    end = next((i + 1 for i, token in enumerate(row) if token in stop), None)
    return Sample(row[:end], [], Finish.LENGTH if end is None else Finish.STOP)
