"""Several servers behind one gateway: which is asked, which one when that fails, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp
import pytest

from selfverify.remote.client import OpenAIClient
from selfverify.remote.connection import ServerSettings
from selfverify.serving.app import Gateway
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from selfverify.serving.upstream import Upstream
from serving_servers import Body, FakeUpstream, open_upstream, post, question, quick_gateway, tagged

T = TypeVar("T")
Use = Callable[[aiohttp.ClientSession, str, Gateway], Awaitable[T]]
GONE = "http://127.0.0.1:9"


def says(answer: str, **more: Any) -> FakeUpstream:
    return FakeUpstream(write=lambda body, i: tagged(answer, "0.9"), **more)


def served(
    fakes: dict[str, FakeUpstream | str],
    use: Use[T],
    settings: GatewaySettings | None = None,
    models: dict[str, tuple[str, ...]] | None = None,
    **more: Any,
) -> T:
    """``use`` before these servers, or addresses; of some only these models are asked for."""

    async def main() -> T:
        async with AsyncExitStack() as stack:
            urls = {
                name: fake if isinstance(fake, str) else await open_upstream(fake, stack)
                for name, fake in fakes.items()
            }
            gateway = quick_gateway(urls, settings, **more)
            for connection in gateway.backend.client.connections:  # type: ignore[attr-defined]
                given = (models or {}).get(connection.name)
                connection.settings = replace(connection.settings, models=given)
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            async with asyncio.timeout(30):
                return await use(session, f"http://127.0.0.1:{port}", gateway)

    return asyncio.run(main())


def plain(**more: Any) -> Body:
    return question(best_of=False, **more)


async def answer(session: aiohttp.ClientSession, url: str, **more: Any) -> str:
    status, reply = await post(session, f"{url}/v1/chat/completions", plain(**more))
    assert status == 200, reply
    return str(reply["choices"][0]["message"]["content"])


def count(gateway: Gateway, name: str) -> float:
    """A counter's value."""
    lines = [line for line in gateway.metrics.text().decode().splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_model_is_asked_for_where_it_is() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        assert "one" in await answer(session, url, model="m")
        assert "two" in await answer(session, url, model="big")
        assert [len(one.seen), len(two.seen)] == [1, 1]
        async with session.get(f"{url}/v1/models") as response:
            names = [model["id"] for model in (await response.json())["data"]]
        assert names == ["m", "big", "m@plain", "big@plain"]
        status, reply = await post(session, f"{url}/v1/chat/completions", plain(model="huge"))
        assert (status, reply["error"]["code"]) == (404, "model_not_found")
        assert "a, b" in reply["error"]["message"] and "127.0.0.1" not in reply["error"]["message"]
        listed = one.listed
        await post(session, f"{url}/v1/chat/completions", plain(model="huge"))
        assert one.listed == listed  # nobody makes the gateway ask again and again

    one, two = says("one"), says("two", name="big")
    served({"a": one, "b": two}, use)


def test_given_models_are_not_asked_for() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        assert "two" in await answer(session, url)
        assert one.listed == two.listed == 0
        async with session.get(f"{url}/v1/models/other") as response:
            assert (await response.json())["id"] == "other"

    one, two = says("one"), says("two")
    served({"a": one, "b": two}, use, models={"a": ("other",), "b": ("m",)})


@pytest.mark.parametrize(
    ("fault", "charged"),
    [(429, "no"), (500, "no"), (503, "no"), ("cut", "maybe"), ("garbage", "maybe")],
)
def test_another_server_is_asked(fault: str | int, charged: str, caplog: pytest.LogCaptureFixture) -> None:
    """At once, counted and logged; and first, for a while, if it was the server's own fault."""
    caplog.set_level(logging.WARNING, "selfverify.serving")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        begun = asyncio.get_running_loop().time()
        assert "two" in await answer(session, url)
        assert asyncio.get_running_loop().time() - begun < 4 and [len(one.seen), len(two.seen)] == [1, 1]
        again = f'selfverify_upstream_again_total{{asked="b",charged="{charged}",failed="a"}}'
        assert count(gateway, again) == 1
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1 and "upstream a failed" in told[0] and "7+2" not in told[0]
        assert ("both may charge" in told[0]) == (charged == "maybe")
        await answer(session, url)
        assert len(one.seen) == (2 if fault == "garbage" else 1)

    one, two = says("one", fault=lambda body: fault), says("two")
    served({"a": one, "b": two}, use, wait_s=5.0, longest_wait_s=5.0)


@pytest.mark.parametrize("status", [400, 401, 422])
def test_what_would_fail_everywhere_is_asked_once(status: int) -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        got, _ = await post(session, f"{url}/v1/chat/completions", plain())
        assert got == (502 if status == 401 else status)
        assert [len(one.seen), len(two.seen)] == [1, 0] and not count(
            gateway, "selfverify_upstream_again_total{"
        )

    one, two = says("one", fault=lambda body: status), says("two")
    served({"a": one, "b": two}, use)


def test_a_server_that_is_gone() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        assert "two" in await answer(session, url)
        status, reply = await post(session, f"{url}/v1/chat/completions", question(best_of={"n": 3}))
        assert status == 200 and reply["best_of"]["samples_used"] == 3
        async with session.post(f"{url}/v1/chat/completions", json=plain(stream=True)) as response:
            assert "two" in await response.text()
        async with session.get(f"{url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["m", "m@plain"]

    served({"a": GONE, "b": says("two")}, use, models={"a": ("m",)})


def test_all_fail() -> None:
    """Each is asked as often as one alone; the client is told of the one that wants to be asked first."""

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        status, _ = await post(session, f"{url}/v1/chat/completions", plain())
        assert status == 503 and [len(one.seen), len(two.seen)] == [2, 2]
        assert count(gateway, "selfverify_upstream_tries_total{") == 4

    one, two = says("one", fault=lambda body: 503), says("two", fault=lambda body: 500)
    served({"a": one, "b": two}, use)


def test_nobody_else_is_asked_once_the_client_has_something() -> None:
    """A stream that breaks off ends in an error: another server's answer would not go on where it stopped."""

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        async with session.post(f"{url}/v1/chat/completions", json=plain(stream=True, n=2)) as response:
            text = await response.text()
        assert "one" in text and '"code":"cut_off"' in text and "two" not in text
        assert not two.seen and not count(gateway, "selfverify_upstream_again_total{")

    one, two = says("one", fault=lambda body: "cut"), says("two")
    served({"a": one, "b": two}, use)


def test_a_model_that_was_unloaded_is_asked_for_elsewhere() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        assert "one" in await answer(session, url)
        one.name = "another"
        assert "two" in await answer(session, url)

    one, two = says("one"), says("two")
    served({"a": one, "b": two}, use)


def test_a_server_that_lists_nothing_may_have_the_model() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        assert "one" in await answer(session, url)

    served({"a": says("one", models_fault=404), "b": says("two", name="big")}, use)


def test_readiness() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        async def ready() -> tuple[int, Body]:
            async with session.get(f"{url}/ready") as response:
                return response.status, await response.json()

        status, found = await ready()
        fault = {"name": "b", "ready": False, "fault": "unreachable"}
        assert (status, found["status"]) == (200, "ready")
        assert found["upstreams"] == [{"name": "a", "ready": True}, fault]
        assert (await ready())[0] == 200 and one.listed == 1  # kept for a second
        one.models_fault = 500
        monkey = gateway.backend.client.router  # type: ignore[attr-defined]
        assert await monkey.ready() == {"a": "refused (500)", "b": "unreachable"}
        await asyncio.sleep(1.1)
        status, found = await ready()
        assert (status, found["status"]) == (503, "unready")
        async with session.get(f"{url}/health") as response:
            assert response.status == 200

    one = says("one")
    served({"a": one, "b": GONE}, use, keys=["k"])


def test_a_list_of_models() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        async with session.get(f"{url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["m", "m@plain"]
        chat, asked = f"{url}/v1/chat/completions", [{"role": "user", "content": "x"}]
        for path, body, param in (
            ("chat/completions", plain(model="big"), "model"),
            ("chat/completions", question(model="big@bo2"), "model"),
            ("chat/completions", question(best_of={"n": 1, "verifier": "judge:big"}), "best_of.verifier"),
            ("verify", {"model": "big", "messages": asked, "answer": "9"}, "model"),
            (
                "verify",
                {"model": "m", "messages": asked, "answer": "9", "verifier": "judge:big"},
                "best_of.verifier",
            ),
            ("completions", {"model": "big", "prompt": "x"}, "model"),
            ("embeddings", {"model": "big", "input": "x"}, "model"),
        ):
            status, reply = await post(session, f"{url}/v1/{path}", body)
            assert (status, reply["error"]["code"], reply["error"]["param"]) == (
                404,
                "model_not_found",
                param,
            )
        async with session.get(f"{url}/v1/models/big@plain") as response:
            assert response.status == 404
        assert not two.seen and (await post(session, chat, question()))[0] == 200

    two = says("two", name="big")
    served({"a": says("one"), "b": two}, use, GatewaySettings(models=["m"]))


def test_each_server_has_its_own_key() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            one, two = says("one", fault=lambda body: 503), says("two")
            urls = [await open_upstream(one, stack), await open_upstream(two, stack)]
            servers = [ServerSettings(url, f"key-{i}", name=f"s{i}") for i, url in enumerate(urls)]
            backend = await stack.enter_async_context(Upstream(OpenAIClient(servers)))
            await backend.client.chat(question())
            assert (one.keys, two.keys) == (["Bearer key-0"], ["Bearer key-1"])

    asyncio.run(main())
