"""The threads of this process that hang in episodes, counted over all rollouts."""

from __future__ import annotations

import logging
import threading

from selfverify.core.errors import HungError
from selfverify.core.events import note

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
"""Those of this process."""
