"""Servers in processes of their own: many at once, killed, hung, orphaned."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from selfverify.connectors.openenv import RemoteConfig
from selfverify.connectors.pool import EnvironmentPool, PoolConfig
from selfverify.connectors.server import find_environment
from selfverify.connectors.sources import ProcessSource
from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import ConfigError
from tiny_environment import Counter

COUNTER = "tiny_environment:Counter"


def pid(source: ProcessSource) -> int:
    assert source._process is not None
    return source._process.pid


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"


def test_environments_are_found_by_name() -> None:
    assert find_environment(f"counter={COUNTER}") == ("counter", Counter)
    for wrong in ("counter", "a=b", "a=tiny_environment:", "a=no_such:A", "a=tiny_environment:No", "a=.:x"):
        with pytest.raises(ConfigError, match=r"a=|counter"):
            find_environment(wrong)
    with pytest.raises(ConfigError, match="nothing that can be called"):
        find_environment("a=tiny_environment:TOOLS")


def test_a_server_that_does_not_start_is_an_error() -> None:
    async def main() -> None:
        async with EnvironmentPool([ProcessSource("tiny_environment:No", 1)]):
            pass

    with pytest.raises(ConfigError, match="tiny_environment:No does not start"):
        asyncio.run(main())


@pytest.mark.slow
def test_many_sessions_over_several_processes_that_are_killed() -> None:
    """Three servers, 60 episodes, one server killed in the middle and one stopped: what is lost is masked."""
    settings = RemoteConfig("http://127.0.0.1", act_s=3.0, connect_s=3.0, health_s=1.0)
    sources = [ProcessSource(COUNTER, 4, settings) for _ in range(3)]
    processes: list[int] = []

    async def main() -> tuple[int, int, dict[str, float]]:
        won = lost = 0
        async with EnvironmentPool(sources, PoolConfig(check_s=1.0, wait_s=60)) as pool:
            processes.extend(pid(source) for source in sources)

            async def one(number: int) -> None:
                nonlocal won, lost
                try:
                    async with pool.lease() as lease:
                        await lease.reset({"goal": 10_000}, seed=number)
                        for step in range(1, 6):
                            shown = await lease.step(Call("add", {"number": 1}))
                            assert shown.text == f"{number + step} of 10000" and shown.round == step
                            await asyncio.sleep(0.1)
                        won += 1
                except EnvironmentLost:
                    lost += 1

            async def harm() -> None:
                await asyncio.sleep(0.7)
                os.kill(processes[0], signal.SIGKILL)
                os.kill(processes[1], signal.SIGSTOP)

            await asyncio.gather(harm(), *(one(number) for number in range(60)))
            for _ in range(300):
                if sources[0].restarts and sources[1].restarts:
                    break
                await asyncio.sleep(0.1)
            await asyncio.gather(*(one(number) for number in range(12)))
            processes.extend(pid(source) for source in sources)
            return won, lost, pool.counters()

    won, lost, counted = asyncio.run(main())
    assert won + lost == 72 and 1 <= lost <= 24
    assert [source.restarts for source in sources] == [1, 1, 0]
    assert counted["environments/out_of_order"] >= 2
    assert all(map(gone, processes))


@pytest.mark.slow
def test_a_server_that_keeps_dying_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.connectors.sources.MOST_STARTS", 2)
    source = ProcessSource(COUNTER, 1)
    source._starts = type(source._starts)(maxlen=2)

    async def main() -> None:
        await source.start()
        try:
            for expected in (True, False, False):
                with suppress(ProcessLookupError):
                    os.kill(pid(source), signal.SIGKILL)
                await asyncio.sleep(0.2)
                assert await source.healthy() is expected
        finally:
            await source.close()

    asyncio.run(main())
    assert source.restarts == 1


ORPHAN = """
import asyncio, json, os, sys
from selfverify.connectors.sources import ProcessSource

async def main():
    source = ProcessSource("tiny_environment:Counter", 1)
    await source.start()
    print(json.dumps({"pid": source._process.pid}), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_server_ends_with_the_process_that_started_it() -> None:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    assert parent.stdout is not None
    child = json.loads(parent.stdout.readline())["pid"]
    assert not gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gone(child)
