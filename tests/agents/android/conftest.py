"""A phone behind a server that speaks adb's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agents.android.fake_adb import Server, adb_server
from agents.android.phones import Phone
from selfverify.agents.android.config import AndroidTaskConfig
from selfverify.agents.android.environment import AndroidEnvironment
from selfverify.core.episode import Call, StepResult

SERIAL = "emulator-5554"


def config(server: Server, **more: Any) -> AndroidTaskConfig:
    """Of the first phone, without waits."""
    values: dict[str, Any] = {
        "serial": next(iter(server.phones), SERIAL), "server": server.address, "reset": {"how": "clear"},
        "settle_pause": 0.0, "settle_seconds": 0.0, "command_seconds": 5.0,
    }  # fmt: skip
    return AndroidTaskConfig.model_validate(values | more)


def play(
    environment: AndroidEnvironment, task: dict[str, Any], *done: Call | Callable[[], Awaitable[Any] | None]
) -> list[StepResult]:
    """What a session shows, from its reset on; what is no call is done between calls."""

    async def run() -> list[StepResult]:
        try:
            shown = [await environment.reset(task, 7)]
            for one in done:
                if isinstance(one, Call):
                    shown.append(await environment.step(one))
                elif (awaited := one()) is not None:
                    await awaited
            return shown
        finally:
            await environment.close()

    return asyncio.run(run())


@pytest.fixture
def phone() -> Phone:
    return Phone()


@pytest.fixture
def server(phone: Phone) -> Iterator[Server]:
    with adb_server({SERIAL: phone}) as running:
        yield running
