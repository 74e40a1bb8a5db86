"""What is seen of requests from outside: their ids and the times that they take."""

from __future__ import annotations

import re

import aiohttp
import pytest

from selfverify.serving.app import Gateway, request_id
from serving_servers import Body, FakeUpstream, question, served


@pytest.mark.parametrize(
    "given",
    ["abc", "A.b:c_d-9", "x" * 128, None, "", "a b", "x" * 129, "é", "a\n", "a\r\nSet-Cookie: b", "<b>"],
)
def test_an_id_is_taken_or_made(given: str | None) -> None:
    taken = given in ("abc", "A.b:c_d-9", "x" * 128)
    assert request_id(given) == given if taken else re.fullmatch(r"req-[0-9a-f]{24}", request_id(given))


def test_a_clients_id_is_returned() -> None:
    """With every kind of answer, errors included."""
    fake = FakeUpstream()
    bodies: list[tuple[Body, int]] = [
        (question(), 200),
        (question(stream=True), 200),
        (question() | {"model": "m@plain"}, 200),
        (question(stream=True) | {"model": "m@plain"}, 200),
        (question(n=-1), 400),
    ]

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[str]:
        found = []
        for i, (body, status) in enumerate(bodies):
            ids = {"x-request-id": f"mine-{i}"}
            async with session.post(f"{url}/chat/completions", json=body, headers=ids) as response:
                assert response.status == status
                await response.read()
                found.append(response.headers["x-request-id"])
        async with session.get(f"{url}/nowhere", headers={"x-request-id": "not mine"}) as response:
            found.append(response.headers["x-request-id"])
        return found

    found = served(fake, use)
    assert found[:5] == [f"mine-{i}" for i in range(5)] and found[5].startswith("req-")


def test_histograms() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> str:
        for body in (question(), question(stream=True), question(n=-1)):
            await (await session.post(f"{url}/chat/completions", json=body)).read()
        async with session.get(f"{url[:-3]}/metrics") as response:
            return await response.text()

    text = served(FakeUpstream(), use)
    assert 'selfverify_request_seconds_count{path="/v1/chat/completions"} 3.0' in text
    known = {"path", "le", "status", "kind", "outcome", "reason"}
    assert known >= set(re.findall(r"[{,](\w+)=", text))
