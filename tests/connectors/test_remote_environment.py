"""A client and our server are an environment like any other; a session that breaks off is lost for good."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from environment_servers import answering, opened, with_client, with_server
from selfverify.connectors.content import ContentLimits
from selfverify.connectors.endpoint import SessionLimits
from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment
from selfverify.connectors.pool import EnvironmentPool
from selfverify.connectors.sources import ServerSource
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import DataError
from tables import yaml_cases
from tiny_environment import TOOLS, Counter

ADD = Call("add", {"number": 2})


async def acted(environment: Any) -> list[Any]:
    """What an environment shows in two episodes with every kind of answer."""
    seen: list[Any] = []
    for goal in (5, 3):
        seen.append(await environment.reset({"goal": goal}, seed=1))
        seen += [
            await environment.step(call) for call in (ADD, Call("nothing"), Call("add", {"number": "x"}), ADD)
        ]
        seen.append(await environment.state())
    with pytest.raises(DataError, match="goal is no number"):
        await environment.reset({}, seed=1)
    seen.append(await environment.reset({"goal": 0}, seed=4))
    seen.append(await environment.state())
    await environment.close()
    return seen


def plain(seen: list[Any]) -> list[Any]:
    def one(item: Any) -> Any:
        if not isinstance(item, StepResult):
            return item
        images = [(image.mode, image.size, image.tobytes()) for image in item.images]
        return item.round, item.text, images, item.error, item.done, item.truncated, item.reward, item.info

    return [one(item) for item in seen]


def test_an_environment_elsewhere_is_as_one_here() -> None:
    async def there(url: str, _: Any) -> list[Any]:
        environment = RemoteEnvironment(RemoteConfig(url + "/counter"))
        with pytest.raises(DataError, match=r"open\(\)"):
            environment.tools  # noqa: B018
        await environment.open()
        assert environment.tools == TOOLS
        return await acted(environment)

    here = plain(asyncio.run(acted(Counter())))
    assert plain(with_server(there)) == here
    assert [seen[4] for seen in (here[4], here[10])] == [True, False] and here[10][5]  # done; truncated


def test_sessions_do_not_mix() -> None:
    async def use(url: str, server: Any) -> list[str]:
        async with AsyncExitStack() as stack:
            clients = [await opened(stack, url) for _ in range(20)]

            async def one(number: int, client: RemoteEnvironment) -> str:
                await client.reset({"goal": 1000 + number}, seed=number)
                for _ in range(3):
                    shown = await client.step(ADD)
                return shown.text

            texts = await asyncio.gather(*(one(*pair) for pair in enumerate(clients)))
            assert len(server.endpoints["counter"]) == 20
            return texts

    limits = SessionLimits(sessions=20)
    assert with_server(use, limits) == [f"{n + 6} of {1000 + n}" for n in range(20)]


@yaml_cases
def test_a_lost_session_stays_lost_and_its_server_closes_it(how: str, message: str) -> None:
    async def use(url: str, server: Any) -> str:
        async with AsyncExitStack() as stack:
            client = await opened(stack, url, act_s=1.0 if how == "hang" else 20.0)
            await client.reset({"goal": 9}, seed=0)
            with pytest.raises(EnvironmentLost, match=message) as lost:
                await client.step(Call("fail", {"how": how}))
            for again in (client.step(ADD), client.state(), client.reset({"goal": 9}, 0), client.open()):
                with pytest.raises(EnvironmentLost, match=message):
                    await again
            async with asyncio.timeout(20):  # else the server has kept the session
                while Counter.opened:
                    await asyncio.sleep(0.02)
            return str(lost.value)

    said = with_server(use)
    assert said.startswith("http://127.0.0.1:") and "secret" not in said


def test_a_call_that_is_cancelled_loses_the_session() -> None:
    async def use(client: RemoteEnvironment) -> None:
        await client.reset({"goal": 9}, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.step(Call("fail", {"how": "hang"}))
        with pytest.raises(EnvironmentLost, match="fail was broken off"):
            await client.step(ADD)

    with_client(use)


def test_what_the_caller_gets_wrong_is_said() -> None:
    async def use(client: RemoteEnvironment) -> None:
        for early in (client.step(ADD), client.state()):
            with pytest.raises(DataError, match="comes"):
                await early
        with pytest.raises(DataError, match="'seed'"):
            await client.reset({"seed": 1}, seed=0)
        await client.reset({"goal": 9}, seed=0)
        with pytest.raises(DataError, match="JSON"):
            await client.step(Call("add", {"number": object()}))
        assert (await client.step(ADD)).round == 1

    with_client(use)


def test_a_full_server_and_a_wrong_key_are_said() -> None:
    async def use(url: str, _: Any) -> None:
        async with AsyncExitStack() as stack:
            for key in (None, "wrong"):
                with pytest.raises(EnvironmentLost, match=r"answered 401.*SELFVERIFY_ENVIRONMENT_KEY"):
                    await (await opened(stack, url, key=key)).open()
            with pytest.raises(EnvironmentLost, match="answered 404"):
                await (await opened(stack, url + "/phone", key="right")).open()
            first = await opened(stack, url, key="right")
            await first.open()
            with pytest.raises(EnvironmentLost, match=r"all 1 sessions are in use .CAPACITY_REACHED"):
                await (await opened(stack, url, key="right")).open()
            await first.close()
            for _ in range(1000):
                second = await opened(stack, url, key="right")
                try:
                    await second.open()
                    return
                except EnvironmentLost:
                    await asyncio.sleep(0.02)
            raise AssertionError("the place was not given back")

    with_server(use, SessionLimits(sessions=1), keys=["right"])
    assert "right" not in repr(RemoteConfig("http://a", key="right"))


def test_a_server_that_is_not_there_is_lost() -> None:
    with pytest.raises(EnvironmentLost, match=r"http://127\.0\.0\.1:9: connecting failed"):
        asyncio.run(RemoteEnvironment(RemoteConfig("http://127.0.0.1:9")).open())


async def pings(socket: web.WebSocketResponse) -> None:
    for _ in range(100_000):
        await socket.ping()


def says(*replies: Any) -> Callable[[web.WebSocketResponse], Awaitable[None]]:
    """A server that lists no tools and then gives these replies, one a request; the last again and again."""

    async def script(socket: web.WebSocketResponse) -> None:
        tools = {"type": "observation", "data": {"observation": {"tools": []}}}
        left = [tools, *replies]
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                reply = left.pop(0) if len(left) > 1 else left[0]
                text = reply if isinstance(reply, str) or callable(reply) else json.dumps(reply)
                await (text(socket) if callable(text) else socket.send_str(text))

    return script


FIRST = {"type": "observation", "data": {"observation": {}, "metadata": {"round": 9}}}
BROKEN = {"result": {"content": [{"type": "image", "data": "A" * 99}]}}


def with_script(use: Callable[[RemoteEnvironment], Awaitable[Any]], *replies: Any, **settings: Any) -> Any:
    """What ``use`` returns for a client of a server that gives these replies."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            schema = settings.pop("schema", None)
            return await use(await opened(stack, await answering(stack, says(*replies), schema), **settings))

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ([], "no JSON object"),
        ({"type": "state", "data": {}}, "answered with 'state'"),
        ({"type": "observation"}, "no observation"),
        ({"type": "observation", "data": {"observation": {}, "done": "yes"}}, "done is neither"),
        ({"type": "observation", "data": {"observation": BROKEN}}, "block 0"),
        ({"type": "error", "data": {"message": "e" * 10_000, "code": {}}}, "eeee"),
        ({"type": "error"}, "no reason given"),
        (pings, "add took longer than 0.5 s"),
        (lambda socket: socket.close(), "add was answered with the end"),
        (lambda socket: socket.send_bytes(b"\x80" * 100), "add was answered with bytes"),
        (lambda socket: socket.send_str("x" * 70_000), "add was answered with the end.*65536|65536"),
    ],
)
def test_hostile_servers_lose_the_session(reply: Any, message: str) -> None:
    async def use(client: RemoteEnvironment) -> None:
        await client.reset({}, seed=0)
        started = time.monotonic()
        with pytest.raises(EnvironmentLost, match=message) as lost:
            await client.step(ADD)
        assert str(lost.value).startswith("http://127.0.0.1:") and len(str(lost.value)) < 1_000
        assert time.monotonic() - started < 5

    limits = ContentLimits(message_bytes=2**16 if message.endswith("65536") else 2**20)
    with_script(use, FIRST, reply, act_s=0.5, limits=limits)


def test_an_environment_elsewhere_hears_what_was_handed_in() -> None:
    """Through a lease and over the wire; what it raises there is a loss here."""

    async def use(url: str, _: Any) -> None:
        async with EnvironmentPool([ServerSource(RemoteConfig(url), sessions=1)]) as pool:
            async with pool.lease() as lease:
                with pytest.raises(DataError, match="reset comes before"):
                    await lease.submitted("Done.")
            async with pool.lease() as lease:
                await lease.reset({"goal": 3}, seed=0)
                await lease.submitted("It is 3.")
                assert await lease.state() == {"count": 0, "message": "It is 3."}
                with pytest.raises(EnvironmentLost, match="the counter is broken"):
                    await lease.submitted("lose")

    with_server(use)


def test_a_server_that_does_not_know_submissions_is_told_nothing() -> None:
    """The script would answer a request more with garbage."""

    async def use(client: RemoteEnvironment) -> None:
        await client.reset({}, seed=0)
        await client.submitted("Done.")

    with_script(use, FIRST, "{")


def test_a_refused_action_is_the_agents_fault() -> None:
    """A server without rounds that refuses the arguments: the agent is told, and the session goes on."""
    refused = {"type": "error", "data": {"message": "x is missing", "code": "VALIDATION_ERROR"}}

    async def use(client: RemoteEnvironment) -> None:
        await client.reset({}, seed=0)
        shown = await client.step(ADD)
        assert (shown.round, shown.error) == (0, "x is missing (VALIDATION_ERROR)")
        assert (await client.step(ADD)).round == 1

    with_script(use, FIRST, refused, {"type": "observation", "data": {"observation": {}}})


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        (['{"action": {"properties": {"x": ', '{"type": "integer"}, "metadata": {}}}}'], {"x"}),
        (['{"action": {"properties": [1]}}'], set()),
        (['{"action": 5}'], set()),
        (itertools.repeat(" " * 1000), None),
    ],
)
def test_the_fields_of_a_plain_action_come_in_pieces_or_are_none(parts: Any, fields: set[str] | None) -> None:
    """A list that never ends is not waited for."""

    async def schema(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part.encode())
            await asyncio.sleep(0.02)
        return response

    async def use(client: RemoteEnvironment) -> set[str] | None:
        if fields is None:
            with pytest.raises(EnvironmentLost, match="/schema failed: it is larger than 10,000 bytes"):
                await client.open()
            return None
        await client.open()
        return set(client.tools[0]["function"]["parameters"]["properties"])

    limits = ContentLimits(message_bytes=10_000)
    assert with_script(use, FIRST, schema=schema, actions="plain", limits=limits) == fields


@pytest.mark.parametrize(
    "first", ["", pytest.param("import selfverify.serving.solve\n", marks=pytest.mark.slow)]
)
def test_without_the_extra_it_is_named(first: str) -> None:
    """Also where another module would import aiohttp or openai first; an own model answers without."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('aiohttp', 'openai', 'prometheus_client', 'yarl'))\n"
        f"{first}"
        "from importlib import import_module\n"
        "from selfverify.core.errors import ConfigError\n"
        "for name in ('clients.openai_client', 'connectors.openenv', 'connectors.server'):\n"
        "    try: import_module(f'selfverify.{name}')\n"
        "    except ConfigError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.count("pip install 'selfverify[serve]'") == 3
