"""Asks episodes to reset, step and release: one after another, or on threads with a deadline.

An episode is its author's code. What it raises, and what it returns that makes no sense, is an exception in
the place of the reply, and ends its own conversation only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import HungError
from selfverify.core.events import note
from selfverify.policy.kv_sessions import SampleIndex

logger = logging.getLogger(__name__)


class HungThreads:
    """Threads that were given up because an episode held them too long. Nobody can end them.

    One that comes back after all is counted no longer.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def add(self, thread: threading.Thread) -> None:
        """Count a thread, and say so."""
        with self._lock:
            self._threads.append(thread)
        hung, name = self.count(), thread.name
        note(logger, "thread_hung", f"a thread hangs: {name}; now {hung} hang", thread=name, hung=hung)

    def count(self) -> int:
        """How many threads hang; one that has come back is named once."""
        with self._lock:
            back = [thread for thread in self._threads if not thread.is_alive()]
            self._threads = [thread for thread in self._threads if thread not in back]
            hung = len(self._threads)
        for thread in back:
            message = f"a thread that hung has come back: {thread.name}; now {hung} hang"
            note(logger, "thread_back", message, thread=thread.name, hung=hung)
        return hung

    def refuse_more_than(self, most: int) -> None:
        """Refuse to go on where too many threads hang.

        Raises:
            HungError: More than ``most`` do; the message names them.
        """
        hung = self.count()
        if hung > most:
            names = "; ".join(thread.name for thread in self._threads[-3:])
            raise HungError(
                f"{hung} threads of this process hang in episodes, and at most {most} may "
                f"(episode.hung_threads); the last: {names}. Give the environment time limits of its own, or "
                "a process that can be killed"
            )


HUNG = HungThreads()
"""Those of this process, counted over all rollouts."""


T = TypeVar("T")


class EpisodeRunner:
    """Asks the episodes of one rollout for their replies.

    A thread that hangs in a reply cannot be ended. It is abandoned and counted (`HUNG`); its late reply is
    ignored. An environment that may hang for good belongs in a process of its own
    (`selfverify.core.process_pool`).

    Args:
        limits: How many threads there are, and how long replies may take.
        name: The name of a conversation, which its threads get.
    """

    def __init__(self, limits: RolloutLimits, name: Callable[[SampleIndex], str]) -> None:
        self.limits, self.name = limits, name
        self._ends = None if limits.rollout_timeout_s is None else time.monotonic() + limits.rollout_timeout_s

    def ask(
        self, calls: Mapping[SampleIndex, Callable[[], T]], what: str
    ) -> dict[SampleIndex, T | Exception]:
        """The outcomes of ``calls``, each of which asks an episode; in the same order.

        Args:
            calls: By conversation.
            what: What they are about, such as the turn.

        Raises:
            HungError: More threads hang than `RolloutLimits.hung_threads`.
        """
        if self.limits.step_threads:
            return self._on_threads(calls, what, self.limits.step_threads, self.limits.hung_threads)
        return {
            place: self._too_late() if self._is_over() else outcome(call) for place, call in calls.items()
        }

    def close(self, episodes: Mapping[SampleIndex, Episode]) -> dict[SampleIndex, Exception | None]:
        """Release all episodes, also those of a rollout that has taken too long.

        Where replies have a deadline, releasing has the same: a hung reply may hold what releasing waits for.
        All are released at the same time then, so that those that hang cost one deadline.
        """
        calls = {place: episode.release for place, episode in episodes.items()}
        if self.limits.step_threads and calls:
            return self._on_threads(calls, "closing", len(calls))
        return {place: outcome(call) for place, call in calls.items()}

    def _on_threads(
        self,
        calls: Mapping[SampleIndex, Callable[[], T]],
        what: str,
        threads: int,
        may_hang: int | None = None,
    ) -> dict[SampleIndex, T | Exception]:
        """The outcome of each call, in the order of ``calls``; the rollout's end bounds what may hang."""
        ends = None if may_hang is None else self._ends
        done: queue.SimpleQueue[tuple[SampleIndex, T | Exception]] = queue.SimpleQueue()
        waiting, running = deque(calls), dict[SampleIndex, tuple[float, threading.Thread]]()
        found: dict[SampleIndex, T | Exception] = {}

        def run(place: SampleIndex) -> None:
            try:
                came = outcome(calls[place])
            except BaseException as error:  # on a thread of ours no user has interrupted
                came = RuntimeError(f"it ended with {type(error).__name__}: {error}")
            done.put((place, came))

        while waiting or running:
            if may_hang is not None:
                HUNG.refuse_more_than(may_hang)
            while waiting and len(running) < threads:
                place = waiting.popleft()
                name = f"{self.name(place)}, {what}"
                thread = threading.Thread(target=run, args=(place,), daemon=True, name=name)
                running[place] = time.monotonic() + self.limits.step_timeout_s, thread
                thread.start()
            until = min(deadline for deadline, _ in running.values())
            until = until if ends is None else min(until, ends)
            try:
                place, came = done.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                now = time.monotonic()
                over = ends is not None and now >= ends
                for place in [p for p, (deadline, _) in running.items() if over or deadline <= now]:
                    HUNG.add(running.pop(place)[1])
                    reason = f"it took longer than {self.limits.step_timeout_s} s"
                    found[place] = self._too_late() if over else TimeoutError(reason)
                if over:
                    found |= {place: self._too_late() for place in waiting}
                    waiting.clear()
            else:
                if running.pop(place, None) is not None:
                    found[place] = came
        if may_hang is not None:
            HUNG.refuse_more_than(may_hang)
        return {place: found[place] for place in calls}

    def _is_over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"the rollout has taken longer than {self.limits.rollout_timeout_s} s")


def begin(episode: Episode) -> Observation | None:
    """What an episode shows before the policy speaks.

    Raises:
        TypeError: It is no `Observation`.
        ValueError: It cuts what nobody has said.
    """
    reply = episode.reset()
    if not isinstance(reply, Observation | None):
        raise TypeError(
            f"it began with an object of type {type(reply).__name__}, not with a Observation or None"
        )
    if reply is not None and reply.channels:
        raise ValueError(f"it began with cuts {reply.channels}, and nothing has been said")
    return reply


def ask(episode: Episode, said: PolicyTurn) -> Observation:
    """An episode's reply.

    Raises:
        TypeError: It is no `Observation`.
        ValueError: Its cuts do not divide what was said.
    """
    reply = episode.step(said)
    if not isinstance(reply, Observation):
        raise TypeError(f"it replied with an object of type {type(reply).__name__}, not with a Observation")
    starts = [start for _, start in reply.channels]
    inside = all(isinstance(start, int) and 0 <= start <= len(said.text) for start in starts)
    if not inside or starts != sorted(starts) or starts[:1] not in ([], [0]):
        raise ValueError(f"its cuts at {starts} do not rise from 0 to at most {len(said.text)}")
    return reply


def ending_of(episode: Episode, turns: int) -> EpisodeResult:
    """What an episode says came of a conversation in which the policy spoke ``turns`` times.

    Raises:
        TypeError: It is no `EpisodeResult`, or has a reward or a score that is no number.
        ValueError: A reward or a score is not finite, which would reach every weight; or there are more
            turns in it than in the conversation.
    """
    ending = episode.result()
    if not isinstance(ending, EpisodeResult):
        raise TypeError(f"its ending is an object of type {type(ending).__name__}, not an EpisodeResult")
    for kind, values in (("reward", ending.rewards), ("score", ending.scores)):
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"its {kind} {name!r} is {value}")
    if len(ending.turns) > turns or any(turn not in range(turns) for turn in ending.lost_turns):
        raise ValueError(f"its ending tells of more turns than the {turns} there were")
    return ending


def outcome(call: Callable[[], T]) -> T | Exception:
    """The result of ``call``, or what it raised."""
    try:
        return call()
    except Exception as error:
        return error
    except (SystemExit, asyncio.CancelledError) as error:
        # Command-line parsers and asynchronous libraries leave by these; they must not end a training run.
        return RuntimeError(f"it ended with {type(error).__name__}: {error}")
