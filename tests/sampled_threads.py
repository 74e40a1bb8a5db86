"""Conversations whose turns come from a function that a test puts in the place of `Policy.sample`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from selfverify.core.config import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession


def drawn(policy: Policy, text: str, ends: bool = True, logprob: float = -0.5) -> Sample:
    """A text as if the policy had sampled it, with the token that ends it or cut off."""
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*ids, policy.tokenizer.eos_token_id] if ends else ids
    return Sample(ids, [logprob] * len(ids), Finish.STOP if ends else Finish.LENGTH)


def sampled_threads(
    policy: Policy, sample: Callable[..., Any]
) -> Callable[[Sequence[Prompt], SamplingConfig], RecomputingSession]:
    """What stands for ``policy.kv_sessions``: first turns of all threads are one call of ``sample``."""

    def asked(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        return sample(prompts, sampling, seeds=seeds) if prompts else []

    def threads(
        prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]
    ) -> RecomputingSession:
        return RecomputingSession(asked, policy.logprobs, prompts, seeds, sampling, policy.encoder.extended)

    return threads
