"""The interface of what samples in place of our own decoder while a policy is trained, such as vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from selfverify.core.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.sampling import Sample


class Engine(Protocol):
    """A sampler with its own copy of a policy's weights. The learner starts, updates and closes it."""

    stale: bool
    """Whether the policy's weights have changed since the last `send_weights`."""

    def sample(self, prompts: Sequence[Prompt], sampling: SamplingConfig) -> list[list[Sample]]:
        """G samples for each of B prompts. All processes of a run have to call this together."""
        ...

    def send_weights(self) -> None:
        """Copy the policy's present weights to the engine."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...
