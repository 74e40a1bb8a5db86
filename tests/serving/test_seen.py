"""What is seen of requests from outside: their ids, the log for programs, and histograms."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import aiohttp
import pytest

from selfverify.serving.app import Gateway
from selfverify.serving.log_lines import JsonFormatter
from selfverify.serving.request_record import AnsweredModels, request_id
from serving_servers import Body, FakeUpstream, post, question, served, tagged

SECRET = "my-secret"


@pytest.mark.parametrize("given", ["abc", "A.b:c_d-9", "x" * 128])
def test_an_id_is_taken(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "é", "a\n", "a\r\nSet-Cookie: b", "<b>"])
def test_an_id_is_made(given: str | None) -> None:
    assert re.fullmatch(r"req-[0-9a-f]{24}", request_id(given))


def test_a_clients_id_is_returned_and_passed_on() -> None:
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
    assert [headers["x-request-id"] for headers in fake.headers] == [f"mine-{i}" for i in range(4)]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The log's lines about requests, as programs read them."""
    told = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    return [line for line in told if "request_id" in line]


def test_a_line_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fake = FakeUpstream(write=lambda body, i: tagged(SECRET))

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        headers = {"Authorization": f"Bearer {SECRET}"}
        for body in (
            question(SECRET),
            question(SECRET, stream=True, best_of={"n": 2}),
            question(SECRET) | {"model": SECRET},
            question(SECRET) | {"model": "m@plain", "stream": True},
            question(SECRET) | {SECRET: SECRET, "n": SECRET},
        ):
            await (await session.post(f"{url}/chat/completions", json=body, headers=headers)).read()
        await post(session, f"{url}/chat/completions", question(SECRET))

    served(fake, use, keys=[SECRET, "other"])
    chosen, stream, unknown, plain, wrong, keyless = lines(caplog)
    times = ("time", "request_id", "seconds", "upstream_seconds")
    assert {name: value for name, value in chosen.items() if name not in times} == {
        "level": "info",
        "logger": "selfverify.serving",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "model": "m",
        "candidates": 8,
        "stopped": "samples",
        "calls": 1,
        "tokens": {"prompt": 10, "candidate": 56, "verification": 0},
        "usage_complete": True,
    }
    assert 0 < chosen["upstream_seconds"] <= chosen["seconds"]
    assert stream["candidates"] == 2 and 0 < stream["first_token_seconds"] <= stream["seconds"]
    assert (unknown["status"], unknown["error"]) == (404, "upstream_error") and "model" not in unknown
    assert plain["model"] == "m" and plain["first_token_seconds"] > 0 and "candidates" not in plain
    assert (wrong["status"], wrong["error"]) == (400, "invalid_value")
    assert (keyless["status"], keyless["error"]) == (401, "invalid_api_key") and "key" not in keyless
    whole = [JsonFormatter().format(record) for record in caplog.records]
    assert not [line for line in whole if SECRET in line]


def test_a_fault_is_told_without_its_text() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        fault = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "it %s", ("failed",), fault)
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["level"]) == ("it failed", "error")
    assert line["exception"].startswith("ValueError test_seen.py:")


def test_models_are_named_once_a_server_has_answered() -> None:
    models = AnsweredModels()
    assert models.told("m", answered=False) is None
    assert models.told("m", answered=True) == "m"
    assert models.told("m", answered=False) == "m"
    assert models.told("what is 7+2?", answered=True) is None
    assert models.told(None, answered=True) is None


def test_histograms() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> str:
        for body in (question(), question(stream=True), question(n=-1)):
            await (await session.post(f"{url}/chat/completions", json=body)).read()
        async with session.get(f"{url[:-3]}/metrics") as response:
            return await response.text()

    text = served(FakeUpstream(delay_s=0.06), use)
    path = '{path="/v1/chat/completions"}'
    for line in (
        f"selfverify_request_seconds_count{path} 3.0",
        f"selfverify_first_token_seconds_count{path} 1.0",
        f"selfverify_upstream_seconds_count{path} 2.0",
        f"selfverify_upstream_share_count{path} 2.0",
        'selfverify_upstream_seconds_bucket{le="0.05",path="/v1/chat/completions"} 0.0',
    ):
        assert line in text, line
    known = {"path", "le", "status", "kind", "outcome", "reason", "upstream", "failed", "asked", "charged"}
    assert known >= set(re.findall(r"[{,](\w+)=", text))
