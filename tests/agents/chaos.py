"""Agents that know what to do, in environments that somebody breaks while they work."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from tests.agents.told import Told

from selfverify.agents.episode import AgentEpisode
from selfverify.agents.session import PooledEnvironment, SharedPool
from selfverify.connectors.openenv import RemoteEnvironment
from selfverify.connectors.pool import PoolConfig, Source
from selfverify.connectors.sources import ProcessSource
from selfverify.core import event_loop
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Environment
from selfverify.core.problem import Problem
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig

GIVEN = {"text": "terse", "agent": {"first_screen": "given"}, "prompt": "task", "react": False}


class Experts(PhoneAgents):
    """Everybody does the task, hands in what proves it, and needs an environment that lives that long.

    Args:
        sources: Where phones come from.
        limits: Of conversations.
    """

    def __init__(self, sources: Callable[[], Sequence[Source]], limits: RolloutLimits) -> None:
        super().__init__(PhoneAgentsConfig.model_validate(GIVEN))
        self.lender = SharedPool(sources, PoolConfig(wait_s=120.0, check_s=0.5, close_s=5.0))
        self.limits = limits

    def open(self, problem: Problem, seed: int) -> Any:
        inner = super().open(problem, seed)
        assert isinstance(inner, AgentEpisode)
        inner.make = self._phone
        turns = self.demonstrate_turns(problem, np.random.default_rng(0))
        return Told(inner, [turn.text for turn in turns])

    def _phone(self) -> Environment:
        return PooledEnvironment(self.lender, self.tools())


class Vandal:
    """Breaks something at random moments, as a context manager on a thread of its own.

    Args:
        task: Whose environments are broken.
        sources: Processes that may be killed.
        harms: What is done, in this order, again and again: ``server`` kills a process, ``connection`` cuts
            one.
        pause_s: The mean time between two harms.
        seed: Draws moments and victims.
        kills: How many processes are killed at most.
        most: How much is broken at most.
    """

    def __init__(
        self,
        task: Experts,
        sources: Sequence[ProcessSource],
        harms: Sequence[str],
        pause_s: float,
        seed: int,
        kills: int = 2,
        most: int = 20,
    ) -> None:
        self.task, self.sources, self.harms, self.pause_s = task, sources, harms, pause_s
        self.kills, self.most = kills, most
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rage, daemon=True)

    def __enter__(self) -> Vandal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _rage(self) -> None:
        number = 0
        while self.done.total() < self.most:
            if self._stop.wait(self.rng.uniform(0.5, 1.5) * self.pause_s):
                return
            harm = self.harms[number % len(self.harms)]
            number += 1
            with suppress(Exception):  # the victim was gone already
                if event_loop.start(getattr(self, harm)()).result(5):
                    self.done[harm] += 1

    async def server(self) -> bool:
        running = [source._process for source in self.sources if source._process is not None]
        if not running or self.done["server"] >= self.kills:
            return False
        os.kill(self.rng.choice(running).pid, signal.SIGKILL)
        return True

    async def connection(self) -> bool:
        pool = self.task.lender._pool
        lent = [lease.environment for lease in pool._lent] if pool is not None else []
        known = [e for e in lent if isinstance(e, RemoteEnvironment) and e._http and e._round >= 0]
        if known:
            await self.rng.choice(known)._http.close()  # type: ignore[union-attr]
        return bool(known)
