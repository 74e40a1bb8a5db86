"""How many calls a second servers of environments answer, and how long one takes.

Each session asks for the next screen as soon as it has seen the last one. The environment does nothing but
count, and shows a screen of the size that is asked for, so that what is measured is the way there and back.

    python -m benchmarks.environment_load --servers 1 --sessions 16 --screen 1080x2400
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from selfverify.connectors.pool import EnvironmentPool, PoolConfig
from selfverify.connectors.process import ProcessSource
from selfverify.core.episode import Call, Environment, StepResult


class Screens(Environment):
    """Shows screens of coloured boxes with text; a new one for each call."""

    def __init__(self) -> None:
        self.round, self.size = 0, (0, 0)
        self.screens: list[Image.Image] = []

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}]

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        width, height = task["screen"]
        self.round = 0
        self.screens = [screen(width, height, number) for number in range(4)] if width else []
        return self._shown()

    async def step(self, call: Call) -> StepResult:
        self.round += 1
        return self._shown()

    async def close(self) -> None:
        pass

    def _shown(self) -> StepResult:
        images = [self.screens[self.round % 4]] if self.screens else []
        return StepResult(self.round, "x" * 2000, images)


def screen(width: int, height: int, seed: int) -> Image.Image:
    """A picture that is as easy to compress as an app's screen."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for row in range(0, height, max(height // 24, 1)):
        left, right = sorted(int(v) for v in rng.integers(0, width, 2))
        colour = tuple(int(v) for v in rng.integers(0, 256, 3))
        draw.rectangle((left, row, right, row + height // 40), fill=colour)
        draw.text((10, row), "Settings, alarms, contacts and what else a phone has", fill="black")
    return image


async def measure(servers: int, sessions: int, size: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Return calls a second over all sessions, and the median and the 95th percentile of one, in seconds."""
    sources = [ProcessSource("benchmarks.environment_load:Screens", sessions) for _ in range(servers)]
    times: list[float] = []
    async with EnvironmentPool(sources, PoolConfig()) as pool:
        ready = asyncio.Barrier(servers * sessions)

        async def one() -> None:
            async with pool.lease() as lease:
                await lease.reset({"screen": list(size)}, seed=0)
                await ready.wait()
                end = time.perf_counter() + seconds
                while (begun := time.perf_counter()) < end:
                    await lease.step(Call("look"))
                    times.append(time.perf_counter() - begun)

        await asyncio.gather(*(one() for _ in range(servers * sessions)))
    quantiles = statistics.quantiles(times, n=20)
    return {
        "servers": servers,
        "sessions": servers * sessions,
        "screen": list(size),
        "calls_per_second": round(len(times) / seconds, 1),
        "median_s": round(quantiles[9], 4),
        "p95_s": round(quantiles[18], 4),
    }


def main() -> None:
    """Measure once and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=16, help="sessions of each server")
    parser.add_argument("--screen", default="1080x2400", help="WIDTHxHEIGHT; 0x0 shows text only")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    width, _, height = given.screen.partition("x")
    size = int(width), int(height)
    print(json.dumps(asyncio.run(measure(given.servers, given.sessions, size, given.seconds))))


if __name__ == "__main__":
    main()
