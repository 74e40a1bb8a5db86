"""Asks episodes to reset, step and release: one after another, or on threads with a deadline.

An episode is its author's code. An exception that it raises, or that a reply without sense becomes, stands in
the place of the reply and ends its own conversation only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import HungError
from selfverify.core.events import note
from selfverify.core.trajectory import SampleIndex

logger = logging.getLogger(__name__)

SAID, SHOWN, RELEASED, AWAITED, JUDGED = "said", "shown", "released", "awaited", "judged"
"""Kinds of things that are waited for: turns of the policy, observations, environments that are given back,
and behind a conversation's end verdicts and results."""


class HungThreads:
    """Threads that were given up because an episode held them too long. They cannot be ended.

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
"""The hung threads of this process, counted over all rollouts."""


T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    """Something that is waited for: ``run`` on a thread, or a future's result.

    Args:
        kind: Its kind, such as ``shown``.
        indices: Its conversations.
        run: Is called on a thread; None for a future.
        name: The thread's name.
        bounded: Whether the rollout's end and the number of threads bound it.
        joins: Whether what is waited for together waits for it.
        thread: The thread.
        deadline: When the thread is given up.
    """

    kind: str
    indices: Sequence[SampleIndex]
    run: Callable[[], Any] | None = None
    name: str = ""
    bounded: bool = True
    joins: bool = True
    thread: threading.Thread | None = None
    deadline: float = math.inf


class EpisodeRunner:
    """Calls the episodes of one rollout, inline or on threads with deadlines, and waits for what comes of it.

    A thread that hangs in a call cannot be ended. It is abandoned and counted (`HUNG`); its late result is
    ignored. An environment that may hang for good belongs in a process of its own
    (`selfverify.core.process_pool`).

    Args:
        limits: How many threads there are, and how long calls may take.
    """

    def __init__(self, limits: RolloutLimits) -> None:
        self.limits = limits
        self._ends = math.inf
        if limits.rollout_timeout_s is not None:
            self._ends = time.monotonic() + limits.rollout_timeout_s
        self._waiting: deque[_Call] = deque()
        self._running: dict[int, _Call] = {}
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._numbers = count()
        self._arrived: list[tuple[SampleIndex, str, Any]] = []

    def start(
        self,
        kind: str,
        index: SampleIndex,
        run: Callable[[], Any],
        name: str,
        bounded: bool = True,
        joins: bool = True,
    ) -> None:
        """Call an episode: now, or on a thread as soon as one is free.

        Args:
            kind: Under which `wait` returns the outcome.
            index: The conversation.
            run: The call.
            name: The thread's name in messages.
            bounded: Whether the rollout's end and the number of threads bound the call.
            joins: Whether what is waited for together waits for it.
        """
        call = _Call(kind, [index], run, name, bounded, joins)
        if self.limits.step_threads:
            self._waiting.append(call)
            self._start_threads()
        else:
            late = bounded and time.monotonic() >= self._ends
            self._arrived.append((index, kind, self._too_late() if late else outcome(run)))

    def watch(self, kind: str, indices: Sequence[SampleIndex], future: Future[Any]) -> None:
        """Wait for a future, too, which has a deadline of its own or none.

        Its outcome is that of all its conversations; what is said comes by conversation.
        """
        number = next(self._numbers)
        self._running[number] = _Call(kind, indices, joins=kind not in (AWAITED, JUDGED))
        future.add_done_callback(lambda done: self._done.put((number, outcome(done.result))))

    def watched(self, kind: str) -> set[SampleIndex]:
        """Return the conversations for which something of a kind has not come yet."""
        calls = (*self._waiting, *self._running.values())
        return {index for call in calls if call.kind == kind for index in call.indices}

    @property
    def pending(self) -> bool:
        """Whether anything has been asked for that `wait` has not returned yet."""
        return bool(self._waiting or self._arrived or self._running)

    @property
    def busy(self) -> bool:
        """Whether anything that joins, which no verdict does, has been asked for and not been returned."""
        return bool(self._arrived) or self._joining

    @property
    def _joining(self) -> bool:
        return any(call.joins for call in (*self._waiting, *self._running.values()))

    def wait(self, everything: bool) -> dict[str, dict[SampleIndex, Any]]:
        """Wait until something has come, and return it by kind and in the order of the conversations.

        An outcome is a result or the exception in its place; that of a call that took too long is a
        `TimeoutError`.

        Args:
            everything: Wait for all that joins; what does not is waited for only if nothing else is.

        Raises:
            HungError: More threads hang than `RolloutLimits.hung_threads`.
        """
        while True:
            while self._collect(block=False):
                pass
            self._start_threads()
            if self._arrived and not (everything and self._joining):
                break
            self._collect(block=True)
        kinds = (SAID, SHOWN, RELEASED, AWAITED, JUDGED)
        found: dict[str, dict[SampleIndex, Any]] = {kind: {} for kind in kinds}
        for index, kind, came in sorted(self._arrived, key=lambda arrived: arrived[0]):
            found[kind][index] = came
        self._arrived.clear()
        return found

    def forget(self) -> None:
        """Begin no more calls, and wait for nothing any more."""
        self._waiting.clear()
        self._running.clear()
        self._arrived.clear()

    def _start_threads(self) -> None:
        """Start the calls that may run now: bounded ones on so many threads, all others at once."""
        bounded = sum(call.bounded and call.thread is not None for call in self._running.values())
        for call in [*self._waiting]:
            if call.bounded:
                HUNG.refuse_more_than(self.limits.hung_threads)
                if bounded >= self.limits.step_threads:
                    continue
                bounded += 1
            self._waiting.remove(call)
            number, call.deadline = next(self._numbers), time.monotonic() + self.limits.step_timeout_s
            call.thread = threading.Thread(target=self._run, args=(number, call), daemon=True, name=call.name)
            self._running[number] = call
            call.thread.start()

    def _run(self, number: int, call: _Call) -> None:
        assert call.run is not None
        try:
            came = outcome(call.run)
        except BaseException as error:  # on a thread of ours no user has interrupted
            came = RuntimeError(f"it ended with {type(error).__name__}: {error}")
        self._done.put((number, came))

    def _collect(self, block: bool) -> bool:
        """Take what has come, and return whether there was anything; ``block`` waits for it or a deadline."""
        until = min((self._deadline(call) for call in self._running.values()), default=math.inf)
        left = None if until == math.inf else max(until - time.monotonic(), 0.0)
        try:
            number, came = self._done.get(block, left)
        except queue.Empty:
            self._give_up()
            return False
        call = self._running.pop(number, None)
        if call is not None:
            several = call.kind == SAID and not isinstance(came, Exception)
            self._arrived += [(index, call.kind, came[index] if several else came) for index in call.indices]
        return True

    def _deadline(self, call: _Call) -> float:
        bounded = call.bounded and call.thread is not None
        return min(call.deadline, self._ends) if bounded else call.deadline

    def _give_up(self) -> None:
        """Give up the threads whose time is over, and what would begin after the rollout's end."""
        now = time.monotonic()
        hung = False
        for number, call in [*self._running.items()]:
            if call.thread is not None and self._deadline(call) <= now:
                del self._running[number]
                HUNG.add(call.thread)
                hung = hung or call.bounded
                late = TimeoutError(f"it took longer than {self.limits.step_timeout_s} s")
                over = call.bounded and now >= self._ends
                self._arrived.append((call.indices[0], call.kind, self._too_late() if over else late))
        if now >= self._ends:
            for call in [call for call in self._waiting if call.bounded]:
                self._waiting.remove(call)
                self._arrived.append((call.indices[0], call.kind, self._too_late()))
        if hung:
            HUNG.refuse_more_than(self.limits.hung_threads)

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"the rollout has taken longer than {self.limits.rollout_timeout_s} s")


def begin(episode: Episode) -> Observation | None:
    """Return a first observation that was checked; None where the policy speaks first.

    Raises:
        TypeError: It is no `Observation`.
        ValueError: It divides a turn, and there is none.
    """
    reply = episode.reset()
    if not isinstance(reply, Observation | None):
        raise TypeError(f"`reset` returned a {type(reply).__name__}; it has to return an Observation or None")
    if reply is not None and reply.channels:
        raise ValueError(f"`reset` divides a turn at {reply.channels}, and there is none; leave channels out")
    return reply


def ask(episode: Episode, said: PolicyTurn) -> Observation:
    """An episode's reply.

    Raises:
        TypeError: It is no `Observation`.
        ValueError: Its cuts do not divide what was said.
    """
    reply = episode.step(said)
    if not isinstance(reply, Observation):
        raise TypeError(f"`step` returned a {type(reply).__name__}; it has to return an Observation")
    starts = [start for _, start in reply.channels]
    inside = all(isinstance(start, int) and 0 <= start <= len(said.text) for start in starts)
    if not inside or starts != sorted(starts) or starts[:1] not in ([], [0]):
        raise ValueError(
            f"its channels begin at {starts}; they have to rise from 0 to at most {len(said.text)}"
        )
    return reply


def ending_of(episode: Episode, turns: int) -> EpisodeResult:
    """Return an episode's checked result of a conversation in which the policy spoke ``turns`` times.

    Raises:
        TypeError: It is no `EpisodeResult`, or has a reward or a score that is no number.
        ValueError: A reward or a score is not finite, which would reach every weight; or there are more
            turns in it than in the conversation.
    """
    ending = episode.result()
    if not isinstance(ending, EpisodeResult):
        raise TypeError(f"`result` returned a {type(ending).__name__}; it has to return an EpisodeResult")
    for kind, values in (("reward", ending.rewards), ("score", ending.scores)):
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"its {kind} {name!r} is {value}, which has to be finite")
    if len(ending.turns) > turns or any(turn not in range(turns) for turn in ending.lost_turns):
        raise ValueError(f"its result has verdicts on more turns than the {turns} of the conversation")
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
