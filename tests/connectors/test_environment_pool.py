"""A pool lends in order, replaces what is lost, leaves out what is out of order, and leaves nothing open."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from environment_servers import serve
from selfverify.connectors.endpoint import SessionLimits
from selfverify.connectors.openenv import RemoteConfig
from selfverify.connectors.pool import EnvironmentPool, Lease, LocalSource, PoolConfig, Source
from selfverify.connectors.server import find_environment
from selfverify.connectors.sources import ProcessSource, ServerSource
from selfverify.core.episode import Call, Environment, EnvironmentLost
from selfverify.core.errors import ConfigError, DataError
from tiny_environment import Counter

TASK = {"goal": 10_000}


def with_pool(use: Callable[[EnvironmentPool], Awaitable[Any]], *sources: Source, **settings: Any) -> Any:
    """What ``use`` returns for a pool; afterwards nothing is open, and no task is left."""

    async def main() -> Any:
        async with EnvironmentPool(sources or [LocalSource(Counter, 2)], PoolConfig(**settings)) as pool:
            found = await use(pool)
        assert len(asyncio.all_tasks()) == 1
        return found

    found = asyncio.run(main())
    assert Counter.opened == []
    return found


async def refused(pool: EnvironmentPool, why: str) -> None:
    """See that the pool lends nothing, and says why."""
    with pytest.raises(EnvironmentLost, match=why):
        async with pool.lease():
            pass


class Broken(Source):
    """Counters that cannot be had ``faults`` times, and while it is not well."""

    def __init__(self, faults: int = 0, well: bool = True, name: str = "broken", sessions: int = 2) -> None:
        super().__init__(name, sessions)
        self.faults, self.well = faults, well
        self.opened = self.checks = 0

    async def open(self) -> Environment:
        self.opened += 1
        if self.faults:
            self.faults -= 1
            raise EnvironmentLost("the plug is pulled")
        return Counter()

    async def healthy(self) -> bool:
        self.checks += 1
        return self.well


def test_who_asks_first_is_served_first_and_never_more_than_may_be() -> None:
    async def use(pool: EnvironmentPool) -> list[int]:
        served: list[int] = []
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with pool.lease() as lease:
                served.append(number)
                most = max(most, len(Counter.opened))
                await lease.reset(TASK, seed=number)
                await asyncio.sleep(0.005 * (number % 3))

        await asyncio.gather(*(one(number) for number in range(20)))
        assert most == 2
        return served

    assert with_pool(use) == list(range(20))


def test_lost_sessions_are_replaced() -> None:
    """After a loss, an error of whoever has it, a call that is broken off, or an early end."""

    async def use(pool: EnvironmentPool) -> None:
        seen = []
        for fault in (EnvironmentLost, KeyError, TimeoutError, "close", "unnoticed", None):
            async with AsyncExitStack() as stack:
                if isinstance(fault, type):
                    stack.enter_context(pytest.raises(fault))
                lease = await stack.enter_async_context(pool.lease())
                seen.append(lease.environment)
                with pytest.raises(DataError):  # a task that does not exist costs no session
                    await lease.reset({}, 0)
                await lease.reset(TASK, 0)
                if fault is EnvironmentLost:
                    await lease.step(Call("fail", {"how": "lose"}))
                elif fault is KeyError:
                    raise KeyError("the user's own")
                elif fault is TimeoutError:
                    async with asyncio.timeout(0.05):
                        await lease.step(Call("fail", {"how": "hang"}))
                elif fault == "unnoticed":
                    with pytest.raises(EnvironmentLost):
                        await lease.step(Call("fail", {"how": "lose"}))
                elif fault == "close":
                    await lease.close()
                    with pytest.raises(EnvironmentLost, match="session is closed"):
                        await lease.step(Call("add", {"number": 1}))
        assert len(set(map(id, seen))) == 6
        counted = pool.counters()
        assert counted["environments/opened"] == 6 and counted["environments/lost"] == 5

    with_pool(use)


def test_a_lease_ends() -> None:
    async def use(pool: EnvironmentPool) -> None:
        async with pool.lease() as lease:
            await lease.reset(TASK, 0)
        add = lease.step(Call("add", {"number": 1}))
        for late in (add, lease.reset(TASK, 0), lease.submitted("Done."), lease.state()):
            with pytest.raises(EnvironmentLost, match="this process: the lease has ended"):
                await late

    with_pool(use)


def test_a_source_out_of_order_is_left_out_until_it_is_well(caplog: pytest.LogCaptureFixture) -> None:
    bad = Broken(well=False, name="bad", sessions=50)
    good = LocalSource(Counter, 2, "good")

    async def use(pool: EnvironmentPool) -> None:
        bad.faults = 1
        for _ in range(10):
            async with pool.lease() as lease:
                assert lease.source == "good"
        assert bad.opened == 1
        bad.well = True
        served = ""
        async with asyncio.timeout(20):
            while served != "bad":
                await asyncio.sleep(0.02)
                async with pool.lease() as lease:
                    served = lease.source
        assert pool.counters()["environments/out_of_order"] == 1

    with_pool(use, bad, good, check_s=0.1)
    assert "bad is left out: the plug is pulled" in caplog.text


def test_a_source_that_fails_its_check_is_left_out() -> None:
    sick = Broken(well=False)

    async def use(pool: EnvironmentPool) -> None:
        async with pool.lease() as lease:
            await asyncio.sleep(0.15)
            await lease.reset(TASK, 0)  # who has a session keeps it
            await refused(pool, r"within 0\.2 s: broken: it fails its check")
        assert Counter.opened == []  # it is not kept for later

    with_pool(use, sick, check_s=0.05, wait_s=0.2)


def test_waiting_has_an_end_and_says_why() -> None:
    async def use(pool: EnvironmentPool) -> None:
        async with pool.lease(), pool.lease():
            await refused(pool, r"within 0\.1 s: 1 of 1 sources are in order")
        async with pool.lease():
            pass

    with_pool(use, wait_s=0.1)


def test_an_opening_that_hangs_is_given_up() -> None:
    class Slow(Broken):
        async def open(self) -> Environment:
            await asyncio.sleep(60)
            return Counter()

    async def use(pool: EnvironmentPool) -> str:
        async with pool.lease() as lease:
            return lease.source

    sources = Slow(name="slow", sessions=9), LocalSource(Counter, 1, "fast")
    assert with_pool(use, *sources, open_s=0.05) == "fast"


def test_nothing_is_left_when_the_pool_ends() -> None:
    async def main() -> None:
        pool = EnvironmentPool([LocalSource(Counter, 2)], PoolConfig())
        lost: list[str] = []
        held: list[Lease] = []
        ended = asyncio.Event()

        async def hold() -> None:
            try:
                async with pool.lease() as lease:
                    await lease.reset(TASK, 0)
                    held.append(lease)
                    await ended.wait()
                    await lease.step(Call("add", {"number": 1}))
            except EnvironmentLost as error:
                lost.append(str(error))

        async with pool:
            holding = [asyncio.create_task(hold()) for _ in range(5)]
            while len(held) < 2:  # the others wait
                await asyncio.sleep(0)
        assert Counter.opened == []
        ended.set()
        await asyncio.gather(*holding)
        assert (
            sorted(lost)
            == ["the pool of environments has ended"] * 3 + ["this process: the lease has ended"] * 2
        )
        await refused(pool, "has ended")
        await pool.close()

    asyncio.run(main())


class Never(Broken):
    """A source that cannot start."""

    async def start(self) -> None:
        raise ConfigError("no such thing")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Never(), "no such thing"),
        (ProcessSource("tiny_environment:No", 1), "tiny_environment:No does not start"),
    ],
)
def test_a_start_that_fails_ends_the_pool(source: Source, said: str) -> None:
    async def main() -> None:
        async with EnvironmentPool([LocalSource(Counter, 1), source]):
            pass

    with pytest.raises(ConfigError, match=said):
        asyncio.run(main())
    for wrong in (lambda: EnvironmentPool([]), lambda: LocalSource(Counter, 0)):
        with pytest.raises(ConfigError):
            wrong()


@pytest.mark.parametrize("seed", range(5))
def test_cancelling_at_any_moment_loses_no_place(seed: int) -> None:
    """Users who give up while they wait, open, act or give back: afterwards every place is there."""

    class Sleepy(Broken):
        async def open(self) -> Environment:
            await asyncio.sleep(0.001 * rng.random())
            return await super().open()

    rng = random.Random(seed)
    sources = [Sleepy(faults=2, name=name, sessions=2) for name in "ab"]

    async def use(pool: EnvironmentPool) -> None:
        async def one(number: int) -> None:
            try:
                async with asyncio.timeout(0.02 * rng.random()), pool.lease() as lease:
                    await lease.reset(TASK, number)
                    await asyncio.sleep(0.004 * rng.random())
                    await lease.step(Call("add", {"number": 1}))
            except (TimeoutError, EnvironmentLost):
                pass

        await asyncio.gather(*(one(number) for number in range(60)))
        await asyncio.sleep(0.2)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(5):
                leases: list[Lease] = [await stack.enter_async_context(pool.lease()) for _ in range(4)]
            assert sorted(lease.source for lease in leases) == ["a", "a", "b", "b"]
            assert len(Counter.opened) == 4

    with_pool(use, *sources, check_s=0.05)


def test_a_pool_over_addresses() -> None:
    """A server that is full, one that is not there, and one that works."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            limits = SessionLimits(sessions=1)
            urls = [(await serve(stack, limits))[1] for _ in range(3)] + ["http://127.0.0.1:9"]
            held = await stack.enter_async_context(EnvironmentPool([ServerSource(RemoteConfig(urls[0]), 1)]))
            await stack.enter_async_context(held.lease())
            sources = [ServerSource(RemoteConfig(url + "/counter" * (url[-2:] != ":9")), 4) for url in urls]
            pool = await stack.enter_async_context(EnvironmentPool(sources, PoolConfig(check_s=0.1)))

            async def one(number: int) -> str:
                async with pool.lease() as lease:
                    return (await lease.reset(TASK, number)).text

            texts = await asyncio.gather(*(one(number) for number in range(12)))
            assert texts == [f"{number} of 10000" for number in range(12)]
            assert await sources[1].healthy()  # below its name, where health stands at the top
            _, guarded = await serve(stack, keys=["right"])
            assert await ServerSource(RemoteConfig(guarded + "/counter"), 1).healthy()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert Counter.opened == []


# --- servers in processes of their own: many at once, killed, hung, orphaned --------------------------------


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


@pytest.mark.slow
def test_a_server_that_hangs_or_dies_is_started_anew_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("selfverify.connectors.sources.MOST_STARTS", 3)
    source = ProcessSource(COUNTER, 1, RemoteConfig("http://127.0.0.1", health_s=1.0))
    processes: list[int] = []

    async def main() -> None:
        await source.start()
        try:
            for harm, healthy in (
                (signal.SIGSTOP, [False, False, True]),
                (signal.SIGKILL, [True]),
                (signal.SIGKILL, [False, False]),
            ):
                processes.append(pid(source))
                os.kill(processes[-1], harm)
                await asyncio.sleep(0.2)
                assert [await source.healthy() for _ in healthy] == healthy
        finally:
            await source.close()

    asyncio.run(main())
    assert len(set(processes)) == 3 and all(map(gone, processes))


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
