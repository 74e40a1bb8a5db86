"""What a stranger may send ends in OpenAI's envelope with the field's name, and no server hears of it."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import requests
from yarl import URL

from serving_servers import CHAT, Body, FakeUpstream, data_url, png, question

SMALL, VERIFY = data_url(png()), "verify"


def shown(url: Any, detail: str = "auto", **more: Any) -> Body:
    """Messages with an image at this address."""
    image = {"type": "image_url", "image_url": {"url": url, "detail": detail}, **more}
    parts = [{"type": "text", "text": "What?"}, image]
    return {"messages": [{"role": "user", "content": parts}]}


def said(content: Any, **more: Any) -> Body:
    """Messages of one message."""
    return {"messages": [{"role": "user", "content": content, **more}]}


BY_BOTH: list[tuple[str, list[Body], str]] = [
    *[(CHAT, [{"stream": v} for v in ("yes", "true", "false", "", 1, 0, 1.0, [], {})], "stream")],
    (CHAT, [{"logprobs": v} for v in ("false", 0, 1)], "logprobs"),
    (CHAT, [{"n": v} for v in ("2", True, 2.0, 2.5, [2], 0, -1, 129, 10**30)], "n"),
    (CHAT, [{"n": 65, "model": "m@plain"}, {"n": 5, "best_of": {"n": 2}}], "n"),
    (CHAT, [{"seed": v} for v in ("5", True, 5.0, 1.5, 2**64)], "seed"),
    (CHAT, [{"temperature": v} for v in ("0.5", True, [0.5], 3, -0.1, 1e-300)], "temperature"),
    (CHAT, [{"top_p": v} for v in ("9", 0, 1.1)], "top_p"),
    (CHAT, [{"max_tokens": v} for v in ("9", 0, -5, 5.5, 10**25)], "max_tokens"),
    (CHAT, [{"max_completion_tokens": "9"}, {"max_tokens": 5, "max_completion_tokens": 9}],
     "max_completion_tokens"),
    (CHAT, [{"logprobs": True, "top_logprobs": v} for v in ("9", 21, -1, 2.5)], "top_logprobs"),
    (CHAT, [{"top_logprobs": 3}, {"top_logprobs": 3, "logprobs": False}], "top_logprobs"),
    (CHAT, [{"stream_options": {"include_usage": True}}], "stream_options"),
    (CHAT, [{"stream": True, "stream_options": v} for v in ("x", {"continuous": True})], "stream_options"),
    (CHAT, [{"stream": True, "stream_options": {"include_usage": v}} for v in ("no", 1)],
     "stream_options.include_usage"),
    (CHAT, [{"stop": 5}, {"stop": ["x"] * 17}], "stop"),
    (CHAT, [{"stop": v} for v in ("", [""], [["a"]])], "stop.0"),
    (CHAT, [{"model": v} for v in (5, "", "m" * 600, ["m"], "m@bo8strategy", "m@plain,n=2")], "model"),
    (CHAT, [{"messages": v} for v in ([], {}, "hi", None)], "messages"),
    (CHAT, [{"messages": ["hi"]}], "messages.0"),
    (CHAT, [{"best_of": v} for v in (0, "8", True, [])], "best_of"),
    (CHAT, [{"best_of": {"n": v}} for v in ("2", True, 2.0, 0, 1000, None)], "best_of.n"),
    (CHAT, [{"model": "m@bo0"}], "best_of.n"),
    (CHAT, [{"best_of": {"plain": v}} for v in ("no", 0, 1)], "best_of.plain"),
    (CHAT, [{"best_of": {"samples": v}} for v in ("yes", 1)], "best_of.samples"),
    (CHAT, [{"best_of": {"instruction": "off"}}], "best_of.instruction"),
    (CHAT, [{"best_of": {"confidence": v}} for v in ("0.9", 2)], "best_of.confidence"),
    (CHAT, [{"best_of": {"temperature": 5e-324}}], "best_of.temperature"),
    (CHAT, [{"best_of": {"verifier": v}} for v in ("no", "fused:nan", "fused:x", "fused:1e308", "fused")],
     "best_of.verifier"),
    (CHAT, [{"best_of": {"colour": 1}}, {"model": "m@bo2,colour=1"}], "best_of.colour"),
    (CHAT, [{"best_of": {"strategy": "oracle"}}, {"model": "m@bo8,strategy=nice"}], "best_of.strategy"),
    (CHAT, [{"look": {}}, {"look": "x"}], "look"),
    (CHAT, [{"continue_final_message": "yes"}], "continue_final_message"),
    *[(CHAT, [{name: 1}], name) for name in ("temprature", "bestof", "best-of", "max_token", "Temperature")],
    (VERIFY, [{"verifier": v} for v in (1, "nobody", "inline", "none")], "verifier"),
    (VERIFY, [{"answer": v} for v in (7, [], "", ["7", " "], ["7"] * 65)], "answer"),
    (VERIFY, [{"answer": [["7"]]}], "answer.0"),
    (VERIFY, [{"n": 1}], "n"),
]  # fmt: skip
"""Fields that replace those of a request, and the one that is named."""

CONTENT = "messages.0.content"
HERE: list[tuple[str, list[Body], str]] = [
    *[(CHAT, [{name: value}], name) for name, value in {
        "tools": [{"type": "function"}], "tool_choice": {"type": "function", "function": {"name": "no"}},
        "functions": "x", "response_format": {"type": "json_object"}, "frequency_penalty": 0.5, "top_k": 1,
        "repetition_penalty": 1.5, "guided_choice": ["a", "b"], "logit_bias": {"5": -100}, "echo": True,
        "reasoning_effort": "high", "min_p": 0.1, "ignore_eos": True, "chat_template_kwargs": {"a": False},
         "modalities": ["text", "audio"], "foo": 1, "a\r\nSet-Cookie: x": 1,
        "do_sample": False, "enable_thinking": False, "fooo": 0,
    }.items()],
    (CHAT, [said(v) for v in (None, 5, [], {"type": "text", "text": "x"})], CONTENT),
    (CHAT, [said([v]) for v in ("x", {"type": "video"}, {"type": "text", "text": None})], f"{CONTENT}.0"),
    (CHAT, [said([{"type": "text", "text": "x", "bold": True}])], f"{CONTENT}.0.bold"),
    (CHAT, [{"messages": [{"role": v, "content": "x"}]} for v in ("robot", None, {}, "tool")],
     "messages.0.role"),
    (CHAT, [said("x", name="bob")], "messages.0.name"),
    (CHAT, [said("x", tool_calls=[{"id": "a"}])], "messages.0.tool_calls"),
    (CHAT, [shown("https://example.org/cat.png"), shown(data_url(png((300, 300))[:200]))],
     f"{CONTENT}.1.image_url"),
    (CHAT, [shown(v) for v in (5, None, "")], f"{CONTENT}.1.image_url.url"),
    (CHAT, [shown(SMALL, detail="low")], f"{CONTENT}.1.image_url.detail"),
    (CHAT, [shown(data_url(png((1, 3000))))], "messages"),
    (CHAT, [{"max_tokens": 10**9}], "max_tokens"),
    (CHAT, [{"best_of": {"verifier": "judge:/etc"}}], "best_of.verifier"),
    (CHAT, [{"continue_final_message": True}], "continue_final_message"),
    (CHAT, [{"add_generation_prompt": False}], "add_generation_prompt"),
    (CHAT, [{"model": "m@plain", "continue_final_message": True}], "messages.0.role"),
    (VERIFY, [said(None)], CONTENT),
]  # fmt: skip


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


def refused(url: str, table: list[tuple[str, list[Body], str]]) -> None:
    bases: dict[str, Body] = {CHAT: question(max_tokens=4), VERIFY: question(answer="7")}
    for path, bodies, param in table:
        for body in bodies:
            reply = sent(url, path, {**bases[path], **body})
            assert told(reply)[:2] == (400, param), (body, reply.text)


def test_fields_that_are_refused(before: str, here: str, fake: FakeUpstream) -> None:
    """As OpenAI's API does: ``"no"`` would be true, and ``true`` one answer. Nothing is dropped."""
    refused(here, BY_BOTH + HERE)
    refused(before, BY_BOTH)
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


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 1000000000", b"413"),  # is not waited for
        ("Transfer-Encoding: chunked", b"413"),
        ("Content-Length: -5", b"400"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", b"400"),
    ],
)
def test_bodies_that_are_announced_wrongly(before: str, head: str, status: bytes) -> None:
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", head]
    with socket.create_connection(("127.0.0.1", URL(before).port or 0), timeout=10) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        if head == "Transfer-Encoding: chunked":
            client.sendall((b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 2)
        assert client.recv(100).split(b" ")[1] == status
