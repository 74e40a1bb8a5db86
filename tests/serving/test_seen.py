"""What is seen of requests from outside: their ids and the times that they take."""

from __future__ import annotations

import re

import pytest
import requests

from selfverify.serving.app import request_id
from serving_servers import CHAT, Body, FakeUpstream, Loop, question


@pytest.mark.parametrize(
    "given",
    ["abc", "A.b:c_d-9", "x" * 128, None, "", "a b", "x" * 129, "é", "a\n", "a\r\nSet-Cookie: b", "<b>"],
)
def test_an_id_is_taken_or_made(given: str | None) -> None:
    taken = given in ("abc", "A.b:c_d-9", "x" * 128)
    assert request_id(given) == given if taken else re.fullmatch(r"req-[0-9a-f]{24}", request_id(given))


def test_a_clients_id_is_returned(servers: Loop) -> None:
    """With every kind of answer, errors included."""
    url, _ = servers.before(FakeUpstream())
    bodies: list[tuple[Body, int]] = [
        (question(), 200),
        (question(stream=True), 200),
        (question() | {"model": "m@plain"}, 200),
        (question(stream=True) | {"model": "m@plain"}, 200),
        (question(n=-1), 400),
    ]
    for i, (body, status) in enumerate(bodies):
        given = {"x-request-id": f"mine-{i}"}
        reply = requests.post(f"{url}/{CHAT}", json=body, headers=given, timeout=10)
        assert (reply.status_code, reply.headers["x-request-id"]) == (status, f"mine-{i}")
    reply = requests.get(f"{url}/nowhere", headers={"x-request-id": "not mine"}, timeout=10)
    assert reply.headers["x-request-id"].startswith("req-")
