"""The likeliest tokens in each place of what an own model wrote: OpenAI's ``top_logprobs``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy

Likeliest = list[list[tuple[int, float]]]
"""For each token of an answer the likeliest ids in its place with their log-probabilities, best first."""


@torch.no_grad()
def likeliest(
    policy: Policy, prompt: Prompt, answers: Sequence[Sequence[int]], most: int, temperature: float
) -> list[Likeliest]:
    """Return of each answer's tokens the ``most`` likeliest alternatives, found in one forward pass.

    They are under the temperature of the sampling, before top-p, as the log-probabilities of what was drawn
    are (`policy.voice.TokenSampler.choose`).

    Args:
        policy: Wrote the answers.
        prompt: What they answer.
        answers: Their tokens.
        most: How many alternatives, from 1; fewer where the model knows fewer tokens.
        temperature: Divides the logits; 0 is read as 1.
    """
    batch = policy.stack([[*answers]])
    if not sum(map(len, answers)):
        return [[] for _ in answers]
    [hidden_grh] = policy.hidden_states([prompt], batch)
    found: list[Likeliest] = []
    for states_rh, tokens in zip(hidden_grh, answers, strict=True):
        row: Likeliest = []
        for part in states_rh[: len(tokens)].split(policy.config.logprob_chunk):
            logprobs = (policy.head.logits(part).float() / (temperature or 1.0)).log_softmax(-1)
            values, ids = logprobs.topk(min(most, logprobs.shape[-1]))
            row += [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
        found.append(row)
    return found
