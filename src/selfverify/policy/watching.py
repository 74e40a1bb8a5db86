"""Shows a watcher what a policy says while it says it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from selfverify.core.trajectory import Finish
from selfverify.policy.sampling import Sample
from selfverify.policy.thread_rows import SessionRows
from selfverify.policy.threads import SampleIndex


class TokenCallback(Protocol):
    """Told of every token and of every finished sample, in the thread that samples, which waits meanwhile."""

    def token(self, place: SampleIndex, token: int) -> None:
        """A thread has said a token, which may be the one that ends what it says."""
        ...

    def ended(self, place: SampleIndex, sample: Sample) -> None:
        """A thread has said all that it says."""
        ...


def show(
    watcher: TokenCallback,
    writing: dict[SampleIndex, Sample],
    rows: SessionRows,
    chosen: Tensor,
    logprobs: Tensor,
    stopped: Tensor,
    full: Tensor,
    alive: Tensor,
) -> None:
    """Show a watcher the next token of each thread.

    Args:
        watcher: Is told.
        writing: What each thread has said so far; grows, and loses those that have ended.
        rows: The threads of the tensors below, all of which are ``[B', G']``.
        chosen: The tokens.
        logprobs: Their log-probabilities.
        stopped: Whether a thread has ended with this token by itself.
        full: Whether it has no room for another.
        alive: Whether it goes on. One that was given up does not, and is not told of any more.
    """
    problems, slots, tokens = rows.problems.tolist(), rows.slots.tolist(), chosen.tolist()
    values, ends, last, goes_on = logprobs.tolist(), stopped.tolist(), full.tolist(), alive.tolist()
    for i, problem in enumerate(problems):
        for j, slot in enumerate(slots[i]):
            place = (problem, slot)
            sample = writing.get(place)
            if sample is None:
                continue
            sample.tokens.append(tokens[i][j])
            sample.logprobs.append(values[i][j])
            given_up = not (goes_on[i][j] or ends[i][j] or last[i][j])
            if not given_up:
                watcher.token(place, tokens[i][j])
            if not goes_on[i][j]:
                del writing[place]
                if not given_up:
                    sample.finish = Finish.STOP if ends[i][j] else Finish.LENGTH
                    watcher.ended(place, sample)
