"""A pool over servers that Ray has started, one of which dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from selfverify.core.environment import Call, EnvironmentLost
from selfverify.core.errors import ConfigError

ray = pytest.importorskip("ray")

from selfverify.remote.environments.environment_pool import EnvironmentPool, PoolSettings  # noqa: E402
from selfverify.remote.environments.ray_source import RaySource  # noqa: E402
from selfverify.remote.environments.remote_environment import RemoteSettings  # noqa: E402

COUNTER = "tiny_environment:Counter"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.raises(ConfigError, match=r"ray\.init"):
        asyncio.run(RaySource(COUNTER, 1).start())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_actors_serve_and_are_replaced() -> None:
    settings = RemoteSettings("http://127.0.0.1", act_s=5.0, health_s=2.0)
    sources = [RaySource(COUNTER, 3, settings, {"num_cpus": 1}) for _ in range(2)]

    async def main() -> tuple[int, int]:
        won = lost = 0
        async with EnvironmentPool(sources, PoolSettings(check_s=1.0, wait_s=60)) as pool:

            async def one(number: int) -> None:
                nonlocal won, lost
                try:
                    async with pool.lease() as lease:
                        await lease.reset({"goal": 1000}, seed=number)
                        for step in range(1, 4):
                            await asyncio.sleep(0.1)
                            shown = await lease.act(Call("add", {"number": 1}))
                            assert shown.text == f"{number + step} of 1000"
                        won += 1
                except EnvironmentLost:
                    lost += 1

            async def harm() -> None:
                await asyncio.sleep(0.5)
                ray.kill(sources[0]._actor)

            await asyncio.gather(harm(), *(one(number) for number in range(24)))
            while not sources[0].restarts:
                await asyncio.sleep(0.1)
            await asyncio.gather(*(one(number) for number in range(6)))
        return won, lost

    won, lost = asyncio.run(asyncio.wait_for(main(), 120))
    assert won + lost == 30 and 1 <= lost <= 9 and sources[0].restarts == 1 and sources[1].restarts == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_cannot_start_is_said() -> None:
    for source, why in (
        (RaySource("tiny_environment:No", 1), "there is no No"),
        (RaySource(COUNTER, 1, actor={"num_cpus": 99}, start_s=1.0), r"no room for it within 1 s"),
    ):
        with pytest.raises(ConfigError, match=why):
            asyncio.run(source.start())
