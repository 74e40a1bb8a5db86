"""Conversations on few devices with slow judges: how long `rollout` takes beside the best that could be.

64 conversations share 4 devices. A device replies after .2 to 4 s, and a judge gives its verdict 3 to 60 s
after a conversation. The times are drawn by a seed and divided by `--speed`. The sides:

- `servers`: a sampler that is not in lock-step, such as `ServerSampler`, against list scheduling: each
  conversation takes the device that is free first, and all verdicts are waited for at the same time;
- `own policy`: a sampler in lock-step, against its bound: in each round all wait for the slowest reply.

Beside both stands what waves take, by sums: four conversations at a time, on devices that wait for verdicts.

    python benchmarks/devices.py [--speed 25] [--turns 4 10 20] [--record FILE]
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from common import arguments, finish, parse, show

from selfverify.core import event_loop
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.policy.decoding import derived_seed
from selfverify.rollouts.policy_sampler import ForeignQuestions
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.script_sampler import TextSampler
from selfverify.tasks.base import user_turn

DEVICES, CONVERSATIONS, SEED = 4, 64, 0
Times = tuple[Sequence[float], float]
"""Seconds of each reply of a conversation, and of its verdict."""


class Device(Episode):
    """Replies and is judged after given times."""

    def __init__(self, times: Times) -> None:
        self.replies, self.verdict = times

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`."""
        time.sleep(self.replies[said.turn])
        return Observation("done", done=said.turn + 1 == len(self.replies))

    def awaited(self) -> Future[Any]:
        """See `Episode`."""
        return event_loop.start(asyncio.sleep(self.verdict))

    def result(self) -> EpisodeResult:
        """See `Episode`."""
        return EpisodeResult({"answer": 1.0})


def drawn(turns: int, speed: float) -> list[Times]:
    """The times of all conversations."""
    rng = random.Random(SEED)
    return [
        ([rng.uniform(0.2, 4.0) / speed for _ in range(turns)], rng.uniform(3.0, 60.0) / speed)
        for _ in range(CONVERSATIONS)
    ]


def scheduled(times: Sequence[Times]) -> float:
    """Seconds until the last verdict where each conversation takes the device that is free first."""
    free, last = [0.0] * DEVICES, 0.0
    for replies, verdict in times:
        first = free.index(min(free))
        free[first] += sum(replies)
        last = max(last, free[first] + verdict)
    return last


def in_rounds(times: Sequence[Times]) -> float:
    """Seconds where the conversations on all devices wait for each round's slowest reply."""
    waiting, running, now, last = list(times), list[tuple[int, Times]](), 0.0, 0.0
    while waiting or running:
        while waiting and len(running) < DEVICES:
            running.append((0, waiting.pop(0)))
        now += max(one[0][turn] for turn, one in running)
        last = max([last, *(now + one[1] for turn, one in running if turn + 1 == len(one[0]))])
        running = [(turn + 1, one) for turn, one in running if turn + 1 < len(one[0])]
    return last


def in_waves(times: Sequence[Times]) -> float:
    """Seconds where a wave's devices are held until its verdicts are there."""
    waves = [times[first : first + DEVICES] for first in range(0, len(times), DEVICES)]
    return sum(
        sum(map(max, zip(*(replies for replies, _ in wave), strict=True)))
        + max(verdict for _, verdict in wave)
        for wave in waves
    )


def measured(times: Sequence[Times], lock_step: bool) -> float:
    """Seconds of a real rollout."""
    sampler = TextSampler({(0, g): ["go"] * len(one[0]) for g, one in enumerate(times)})
    sampler.lock_step = lock_step
    of = {derived_seed(SEED, g): one for g, one in enumerate(times)}
    limits = RolloutLimits(turns=len(times[0][0]), step_threads=2 * DEVICES, concurrent=DEVICES)
    problem = Problem("devices", user_turn("Go.", 0))
    begun = time.perf_counter()
    made = rollout(
        sampler, ForeignQuestions(), [problem], [SEED], len(times),
        open_episode=lambda _, seed: Device(of[seed]), limits=limits,
    )  # fmt: skip
    assert not made.errors and len(made.groups[0].trajectories) == CONVERSATIONS
    return time.perf_counter() - begun


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all lengths."""
    parser = arguments(__doc__)
    parser.add_argument("--speed", type=float, default=25.0, help="by what all times are divided")
    parser.add_argument("--turns", type=int, nargs="+", default=[4, 10, 20])
    options = parse(parser, argv)
    rows, results = [], {}
    for turns in options.turns:
        times = drawn(turns, options.speed)
        for name, lock_step, best in (
            ("servers", False, scheduled(times)),
            ("own policy", True, in_rounds(times)),
        ):
            seconds = measured(times, lock_step)
            rows.append([name, turns, seconds, best, seconds / best, in_waves(times) / best])
            results[f"{name.replace(' ', '_')}_{turns}"] = seconds / best
    show("rollouts on devices", ["sampler", "turns", "s", "best s", "over best", "waves over best"], rows)
    finish(results, options)


if __name__ == "__main__":
    main()
