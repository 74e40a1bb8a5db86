"""Servers of the Model Context Protocol as environments: a command, an address, and our own server."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from environment_servers import hosted, with_server
from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import ConfigError, DataError
from tiny_environment import TOOLS, Counter

pytest.importorskip("mcp")
from selfverify.connectors.content import ContentLimits
from selfverify.connectors.mcp import McpConfig, McpToolset

DRAWING = (sys.executable, str(Path(__file__).with_name("mcp_drawing.py")))


def run(use: Callable[[McpToolset], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        toolset = McpToolset(McpConfig(**settings))
        try:
            return await use(toolset)
        finally:
            await toolset.close()
            await toolset.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_a_command() -> None:
    """Its tools, images and errors; each reset has a process of its own."""

    async def use(toolset: McpToolset) -> None:
        with pytest.raises(DataError, match=r"open\(\)"):
            toolset.tools  # noqa: B018
        first = await toolset.reset({}, seed=0)
        assert (first.round, first.text, first.images) == (0, "", [])
        assert [tool["function"]["name"] for tool in toolset.tools] == ["square", "count", "fail", "measure"]
        assert toolset.tools[0]["function"]["parameters"]["required"] == ["size"]
        shown = await toolset.step(Call("square", {"size": 5}))
        assert shown.round == 1 and shown.images[0].size == (5, 5) and not shown.error
        assert (await toolset.step(Call("count"))).text == "1 drawn, PAPER=white"
        measured = await toolset.step(Call("measure"))
        assert (measured.text, measured.done, measured.reward) == ('{"width":3}', False, None)
        for call, why in (
            (Call("fail", {"how": "raise \ud83d"}), "no ink"),
            (Call("square", {"size": "big"}), "size"),
            (Call("dance"), "dance"),
        ):
            assert why in (await toolset.step(call)).error

        assert (await toolset.reset({}, seed=0)).round == 0
        assert (await toolset.step(Call("count"))).text.startswith("0 drawn")

    run(use, command=DRAWING, env={"PAPER": "white"})
    assert "white" not in repr(McpConfig(command=DRAWING, env={"PAPER": "white"}))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "message"), [("die", "fail failed"), ("hang", "fail took longer than 1 s")])
def test_a_command_that_dies_or_hangs_is_lost(how: str, message: str) -> None:
    async def use(toolset: McpToolset) -> None:
        await toolset.reset({}, seed=0)
        for _ in range(2):
            with pytest.raises(EnvironmentLost, match=message):
                await toolset.step(Call("fail", {"how": how}))

    started = time.monotonic()
    run(use, command=DRAWING, act_s=1.0)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("command", [("/no/such/program",), (sys.executable, "-c", "print('hello')")])
def test_commands_that_are_no_servers_are_lost(command: tuple[str, ...]) -> None:
    async def use(toolset: McpToolset) -> None:
        with pytest.raises(EnvironmentLost, match=r"opening (failed|took)"):
            await toolset.reset({}, seed=0)

    run(use, command=command, open_s=5.0)


def test_our_own_server_over_http() -> None:
    """The package's client begins a task on our server; it is an environment again."""

    async def use(url: str, server: Any) -> None:
        toolset = McpToolset(McpConfig(url=url + "/mcp", key="right", begin="begin"))
        with pytest.raises(DataError, match="goal is no number"):
            await toolset.reset({}, seed=1)
        first = await toolset.reset({"goal": 3}, seed=1)
        assert first.text == "1 of 3" and first.images[0].size == (11, 8)
        assert [tool["function"] for tool in toolset.tools] == [tool["function"] for tool in TOOLS]
        assert (await toolset.step(Call("begin"))).error and len(Counter.opened) == 1
        shown = await toolset.step(Call("add", {"number": 1}))
        assert (shown.round, shown.text) == (2, "2 of 3")
        await toolset.close()

        second = McpToolset(McpConfig(url=url + "/counter/mcp", key="right", begin="begin"))
        await second.reset({"goal": 3}, seed=1)
        refused = await second.step(Call("dance"))
        assert refused.error.startswith("there is no dance") and refused.round == 1
        done = await second.step(Call("add", {"number": 2}))
        assert (done.round, done.done, done.truncated, done.reward) == (2, True, False, 2.0)
        await second.reset({"goal": 1}, seed=1)
        over = await second.step(Call("add", {"number": 2}))
        assert (over.round, over.done, over.truncated) == (1, False, True)
        with pytest.raises(EnvironmentLost, match="the counter is broken"):
            await second.step(Call("fail", {"how": "lose"}))
        await second.close()
        for _ in range(50):
            if not len(server.endpoints["counter"]):
                break
            await asyncio.sleep(0.02)
        assert len(server.endpoints["counter"]) == 0

    with_server(use, keys=["right"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        *((body, "opening failed") for body in ("{", "[1]", " " * 200_000)),
        ("hang", "opening took longer than 1 s"),
    ],
)
def test_addresses_that_are_no_servers_are_lost(body: str, message: str) -> None:
    async def handle(request: web.Request) -> web.Response:
        if body == "hang":
            await asyncio.sleep(10)
        return web.Response(text=body, content_type="application/json")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            url = await hosted(stack, web.route("*", "/mcp", handle)) + "/mcp"
            limits = ContentLimits(message_bytes=100_000)
            toolset = McpToolset(McpConfig(url=url, open_s=1.0, limits=limits))
            with pytest.raises(EnvironmentLost, match=message):
                await toolset.open()
            await toolset.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_toolset_is_one_thing() -> None:
    for wrong in (McpConfig(), McpConfig(command=["a"], url="http://a")):
        with pytest.raises(ConfigError, match="either"):
            McpToolset(wrong)
