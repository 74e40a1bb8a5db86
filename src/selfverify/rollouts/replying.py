"""Asking episodes for their replies: one after another, or on threads with a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from selfverify.core.episode import Episode, Reply, Said
from selfverify.core.episode_settings import EpisodeLimits
from selfverify.core.errors import SamplingError
from selfverify.policy.threads import Place

Outcome = Reply | Exception
"""A reply, or why there is none."""


class Replies:
    """Asks the episodes of one rollout for their replies.

    A thread that hangs in a reply cannot be ended. It is abandoned and counted; its late reply is ignored.
    An environment that may hang for good belongs in a process of its own (`selfverify.workers`).

    Args:
        limits: How many threads there are, and how long replies may take.
    """

    def __init__(self, limits: EpisodeLimits) -> None:
        self.limits = limits
        self._abandoned: list[threading.Thread] = []
        self._ends = None if limits.rollout_s is None else time.monotonic() + limits.rollout_s

    def ask(self, said: Mapping[Place, Said], episodes: Mapping[Place, Episode]) -> dict[Place, Outcome]:
        """The outcome of each episode that was told something, in the order of ``said``.

        Raises:
            SamplingError: More threads hang than `EpisodeLimits.hung_threads`.
        """
        if not self.limits.reply_threads:
            return {place: self._now(episodes[place], words) for place, words in said.items()}
        found = self._on_threads(said, episodes)
        return {place: found[place] for place in said}

    def _now(self, episode: Episode, words: Said) -> Outcome:
        return self._too_late() if self._is_over() else _outcome(lambda: episode.reply(words))

    def _on_threads(
        self, said: Mapping[Place, Said], episodes: Mapping[Place, Episode]
    ) -> dict[Place, Outcome]:
        done: queue.SimpleQueue[tuple[Place, Outcome]] = queue.SimpleQueue()
        waiting, running, found = (
            list(said),
            dict[Place, tuple[float, threading.Thread]](),
            dict[Place, Outcome](),
        )

        def run(place: Place) -> None:
            done.put((place, _outcome(lambda: episodes[place].reply(said[place]))))

        while waiting or running:
            while waiting and len(running) < self.limits.reply_threads:
                place = waiting.pop(0)
                thread = threading.Thread(target=run, args=(place,), daemon=True, name=f"reply-{place}")
                running[place] = time.monotonic() + self.limits.reply_s, thread
                thread.start()
            until = min(deadline for deadline, _ in running.values())
            until = until if self._ends is None else min(until, self._ends)
            try:
                place, outcome = done.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                over, now = self._is_over(), time.monotonic()
                for place in [p for p, (deadline, _) in running.items() if over or deadline <= now]:
                    self._abandoned.append(running.pop(place)[1])
                    reason = f"its reply took longer than {self.limits.reply_s} s"
                    found[place] = self._too_late() if over else TimeoutError(reason)
                if over:
                    found |= {place: self._too_late() for place in waiting}
                    waiting = []
                self._refuse_many_hung()
            else:
                if running.pop(place, None) is not None:
                    found[place] = outcome
        return found

    def _is_over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"the rollout has taken longer than {self.limits.rollout_s} s")

    def _refuse_many_hung(self) -> None:
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        if len(self._abandoned) > self.limits.hung_threads:
            raise SamplingError(
                f"{len(self._abandoned)} threads hang in replies of episodes, and at most "
                f"{self.limits.hung_threads} may; give the environment time limits of its own, or a process "
                "that can be killed"
            )


def _outcome(call: Callable[[], Reply]) -> Outcome:
    try:
        return call()
    except Exception as error:
        # An episode is its author's code; whatever it raises ends its own conversation only.
        return error
