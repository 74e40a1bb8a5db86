"""Conversations that grow: what the policy says, what it hears.

A thread is one of the G conversations that follow a prompt. `shared_threads.SharedKVSession` keeps each
prompt's keys and values once for its group, and each thread's own behind them.
`apart_threads.RecomputingSession` serves vLLM and families whose prompts cannot be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from torch import Tensor

from selfverify.policy.continuations import Continuation
from selfverify.policy.sampling import Sample

SampleIndex = tuple[int, int]
"""A thread: its prompt's place in the batch, and its own in the group."""


class KVSession(Protocol):
    """The conversations of B prompts, G of each."""

    def generate(
        self, places: Collection[SampleIndex], turn: int, more: bool = True
    ) -> dict[SampleIndex, Sample]:
        """Let the policy go on in some threads.

        Args:
            places: Which threads.
            turn: How often the policy has spoken before; with seed and place in the group it decides what is
                drawn.
            more: False where no thread will be continued after this.

        Returns:
            What was said, by thread.
        """
        ...

    def append(
        self, pieces: Mapping[SampleIndex, Continuation], score: bool = False
    ) -> dict[SampleIndex, Tensor]:
        """Put tokens and images behind threads that were not drawn from the policy.

        Args:
            pieces: By thread; a family that splits lone images has to have split none here.
            score: Whether the log-probabilities of the pieces' tokens are wanted.

        Returns:
            With ``score`` a tensor ``[tokens]`` for each piece, else nothing.
        """
        ...

    def mark(self, places: Collection[SampleIndex]) -> Callable[[], None]:
        """What brings threads back to where they stand now: it forgets what they say and hear from now on."""
        ...
