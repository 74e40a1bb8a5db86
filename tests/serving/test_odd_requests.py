"""What a stranger may send ends in OpenAI's envelope with the field's name, and no server hears of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import requests
from yarl import URL

from serving_servers import CHAT, Body, FakeUpstream, data_url, png, question
from tables import read_tables, yaml_cases

SMALL, VERIFY = data_url(png()), "verify"


def shown(url: Any, detail: str = "auto", **more: Any) -> Body:
    """Messages with an image at this address."""
    image = {"type": "image_url", "image_url": {"url": url, "detail": detail}, **more}
    parts = [{"type": "text", "text": "What?"}, image]
    return {"messages": [{"role": "user", "content": parts}]}


def said(content: Any, **more: Any) -> Body:
    """Messages of one message."""
    return {"messages": [{"role": "user", "content": content, **more}]}


Refused = list[tuple[str, str, Body]]
"""Paths, fields that are named, and bodies that are refused for them, as what differs from a right one."""

IMAGE = "messages.0.content.1.image_url"
IMAGES: Refused = [
    *[(CHAT, IMAGE, shown(v)) for v in ("https://example.org/cat.png", data_url(png((300, 300))[:200]))],
    *[(CHAT, f"{IMAGE}.url", shown(v)) for v in (5, None, "")],
    (CHAT, f"{IMAGE}.detail", shown(SMALL, detail="low")),
    (CHAT, "messages", shown(data_url(png((1, 3000))))),
]
LONG: Refused = [(CHAT, "model", {"model": "m" * 600}), (VERIFY, "answer", {"answer": ["7"] * 65})]


def table(name: str) -> Refused:
    """A part of the table, in which a field's wrong values stand for bodies with nothing else."""
    found: Refused = []
    for path, fields in read_tables(Path(__file__).with_suffix(".yaml"))[name].items():
        for field, wrong in fields.items():
            for value in wrong.get("values", []):
                for key in reversed(field.split(".")):
                    value = {key: value}
                found.append((path, field, value))
            found += [(path, field, body) for body in wrong.get("bodies", [])]
    return found


def sent(url: str, path: str, body: Any, **headers: str) -> requests.Response:
    """The reply to bytes, or to what becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | headers
    return requests.post(f"{url}/{path}", data=data, headers=headers, timeout=30)


def told(reply: requests.Response) -> tuple[int, Any, Any]:
    """Status, field and code of an error, which has a text and a type."""
    error = reply.json()["error"]
    assert error["message"] and error["type"] and error["code"], reply.text
    return reply.status_code, error["param"], error["code"]


def refused(url: str, given: Refused) -> None:
    bases: dict[str, Body] = {CHAT: question(max_tokens=4), VERIFY: question(answer="7")}
    for path, field, body in given:
        reply = sent(url, path, {**bases[path], **body})
        assert told(reply)[:2] == (400, field), (body, reply.text)


def test_fields_that_are_refused(before: str, here: str, fake: FakeUpstream) -> None:
    """As OpenAI's API does: ``"no"`` would be true, and ``true`` one answer. Nothing is dropped."""
    by_both = table("everywhere") + LONG
    assert len(by_both) > 100
    refused(here, by_both + table("own_model") + IMAGES)
    refused(before, by_both)
    assert fake.seen == []


def test_fields_that_are_taken(before: str, here: str) -> None:
    """A whole number is one with decimals, a null is not there, and what changes nothing may be said."""
    neutral = {
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "response_format": {"type": "text"},
        "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "top_k": -1, "min_p": 0,
        "logit_bias": {}, "user": "u", "metadata": {"a": {"b": 1}}, "store": True, "service_tier": "auto",
    }  # fmt: skip
    taken: list[Body] = [
        neutral,
        {"temperature": 1, "top_p": 1, "n": 1, "seed": -5, "stream": False, "best_of": {"confidence": 1}},
        {"stream": None, "n": None, "best_of": None, "stop": list("abcde"), "stream_options": None},
        {"model": "m@bo2,strategy=best,confidence=0.9,samples=true"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        shown(
            SMALL.replace("data:image/png;base64", "DATA:IMAGE/PNG;charset=utf-8;Base64"), cache_control={}
        ),
        said("x", refusal=None, annotations=[]),
    ]
    for url in (here, before):
        for body in taken:
            reply = sent(url, CHAT, question(max_tokens=4) | body)
            assert reply.status_code == 200, (body, reply.text)
    assert sent(before, CHAT, question(temprature=1, model="m@plain")).status_code == 200


@pytest.mark.parametrize("address", ["here", "before"])
def test_bodies_paths_and_methods(request: pytest.FixtureRequest, address: str) -> None:
    """Types that any page may send, what is no JSON, and what is too large."""
    url = request.getfixturevalue(address)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert told(sent(url, CHAT, question(), **{"Content-Type": kind}))[::2] == (
            415,
            "unsupported_media_type",
        )
    assert told(sent(url, CHAT, {}, **{"Content-Encoding": "gzip"}))[::2] == (415, "unsupported_encoding")
    whole = json.dumps(question())
    for body, part in (
        (b"", ""), (b"{", ""), (b"\xff", ""), (b"[" * 10_000, ""), (whole.encode("utf-16"), ""),
        (whole.encode() + b" x", ""), (b"[]", "object"), (b'"x"', "object"), (b"null", "object"),
        (b'{"n": 1, "n": 2}', "'n' stands twice"), (b'{"messages": [{"a": 1, "a": 2}]}', "'a' stands twice"),
        (b'{"temperature": NaN}', "'temperature'"), (b'{"best_of": {"timeout_s": 1e999}}', "'timeout_s'"),
        (b'{"seed": ' + b"9" * 5000 + b"}", ""), (b'{"model": "\\ud83d"}', ""),
    ):  # fmt: skip
        reply = sent(url, CHAT, body)
        assert told(reply)[::2] == (400, "invalid_json"), body
        assert part in reply.json()["error"]["message"]
    assert told(sent(url, CHAT, b"x" * 600_000))[::2] == (413, "request_too_large")
    for method, path, status, allowed in (
        ("GET", CHAT, 405, "POST"), ("OPTIONS", CHAT, 405, "POST"), ("PUT", VERIFY, 405, "POST"),
        ("POST", "models", 405, "GET, HEAD"), ("POST", "completions", 404, None),
        ("GET", "models/m", 404, None),
    ):  # fmt: skip
        reply = requests.request(method, f"{url}/{path}", timeout=10)
        assert told(reply)[0] == status and reply.headers.get("Allow") == allowed, reply.text
    assert requests.head(f"{url}/{CHAT}", timeout=10).status_code == 405


@yaml_cases
def test_bodies_that_are_announced_wrongly(before: str, head: str, status: str) -> None:
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", head]
    with socket.create_connection(("127.0.0.1", URL(before).port or 0), timeout=10) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        if head == "Transfer-Encoding: chunked":
            client.sendall((b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 2)
        assert client.recv(100).split(b" ")[1] == status.encode()
