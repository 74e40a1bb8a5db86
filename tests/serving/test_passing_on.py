"""What a server says reaches clients: unknown fields, calls of tools, everything where nothing is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from selfverify.clients.candidates import Growing
from selfverify.serving.app import Gateway
from serving_servers import Body, FakeUpstream, question, served
from tables import read_tables, yaml_cases

WHOLE: Body = read_tables(Path(__file__).with_suffix(".yaml"))["whole"]
CALLS: list[Body] = WHOLE["choices"][0]["message"]["tool_calls"]


def asked(said: bytes, model: str, **more: Any) -> bytes:
    """The body that a client gets, who asks before a server that says ``said``."""

    async def use(session: aiohttp.ClientSession, url: str, _: Gateway) -> bytes:
        body = question(**more) | {"model": model}
        async with session.post(f"{url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    kind = "text/event-stream" if said.startswith((b"data", b":")) else "application/json"
    return served(FakeUpstream(says=lambda body: web.Response(body=said, content_type=kind)), use)


def test_calls_and_unknown_fields_arrive() -> None:
    reply = json.loads(asked(json.dumps(WHOLE).encode(), "m@bo1"))
    [choice] = reply["choices"]
    without_index = [{name: value for name, value in call.items() if name != "index"} for call in CALLS]
    assert choice["message"]["tool_calls"] == without_index and choice["message"]["reasoning"] == "hm"
    assert (choice["stop_reason"], reply["service_tier"], reply["system_fingerprint"]) == (7, "flex", "fp")
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
    assert [call["name"] for call in choice["verification"]["answer"]] == ["tap", "wait", "sql"]
    lines = asked(json.dumps(WHOLE).encode(), "m@bo1", stream=True).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    parts = [chunk["choices"][0] for chunk in chunks]
    [calls] = [part["delta"]["tool_calls"] for part in parts if "tool_calls" in part["delta"]]
    assert calls == [call | {"index": i} for i, call in enumerate(CALLS)]
    assert parts[-1]["stop_reason"] == 7 and {chunk["service_tier"] for chunk in chunks} == {"flex"}


ODD = b'{ "choices":[{"index":0,"message":{"content":"1\\u00e9"},"finish_reason":"stop"}],"z":1.0e2 }'
EVENTS = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "1"}, "finish_reason":"stop"}],  "z":1.0e2}',
    b'event: x\ndata: {"choices": []}',
)
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "1"}, "finish_reason": "stop"}], "z": 100.0},
    {"choices": []},
]


def test_without_selection_everything_arrives() -> None:
    """All fields, and text with half of a surrogate pair, for which U+FFFD stands."""
    assert json.loads(asked(ODD, "m@plain")) == json.loads(ODD)
    half = ODD.replace(b"\\u00e9", b" \\ud83d")
    assert json.loads(asked(half, "m@plain"))["choices"][0]["message"]["content"] == "1 \ufffd"
    for pause in (b"\n\n", b"\r\n\r\n"):
        said = pause.join([b": hello", *EVENTS, b"data: [DONE]", b""])
        *got, done, rest = asked(said, "m@plain", stream=True).split(b"\n\n")
        assert [json.loads(event.removeprefix(b"data: ")) for event in got] == CHUNKS
        assert (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize("model", ["m@plain", "m@bo1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [b"9", rb"9 \ud83d"])
def test_what_is_no_number_becomes_null(model: str, stream: bool, text: bytes) -> None:
    """Also beside half of a surrogate pair."""
    head = b'{"index":0,"%s":{"content":"' + text + b'"},"finish_reason":"stop",'
    logprobs = b'"logprobs":{"content":[{"token":"9","logprob":-Infinity,"top_logprobs":[]}]},"x":NaN}'
    events = stream and model == "m@plain"  # a single candidate is not asked for in a stream
    said = b'{"choices":[' + head % (b"delta" if events else b"message") + logprobs + b"]}"
    said = b"data: " + said + b"\n\ndata: [DONE]\n\n" if events else said
    got = asked(said, model, stream=stream, logprobs=True)
    assert b"NaN" not in got and b"Infinity" not in got
    parts = [line[6:] for line in got.splitlines() if line.startswith(b"data: {")] if stream else [got]
    choices = [choice for part in parts for choice in json.loads(part)["choices"]]
    assert {c["x"] for c in choices if "x" in c} == {None}
    assert any((c.get("logprobs") or {}).get("content", [{}])[0].get("logprob", 0) is None for c in choices)


def test_logprobs_are_those_of_the_text_that_is_returned() -> None:
    text = "9 <score>0.8</score>"
    entries = [{"token": token, "logprob": -0.5} for token in ("9", " <", "score", ">0.8</score>")]
    message = {"content": text}
    said = {"choices": [{"message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}]}
    for content, count in (("text", 1), ("raw", 4), ("answer", None)):
        best = {"n": 1, "content": content}
        reply = json.loads(asked(json.dumps(said).encode(), "m", logprobs=True, best_of=best))
        found = reply["choices"][0]["logprobs"]
        assert (found and len(found["content"])) == count


def grown(*pieces: Body) -> list[Body]:
    """The calls that come in these pieces."""
    growing = Growing(lambda reply: None)
    for piece in pieces:
        growing.grow({}, {"delta": {"tool_calls": [piece, "noise"]}})
    return growing.reply.tool_calls


def test_calls_grow_in_streams() -> None:
    """By their index; a function's name with another id begins another call, whatever its index."""
    pieces: list[Body] = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "tap", "arguments": ""}, "extra": 1},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 1, "id": "b", "type": "custom", "custom": {"name": "sql", "input": "select"}},
        {"index": 0, "id": "a", "function": {"name": "tap", "arguments": "1}"}},
        {"index": 1, "custom": {"input": " 1"}},
        {"index": 0, "id": "c", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ]
    whole = {"name": "tap", "arguments": '{"x":1}'}
    assert grown(*pieces) == [
        {"id": "a", "type": "function", "function": whole, "extra": 1},
        {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
        {"id": "c", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ]


def piece(arguments: str | None, name: str | None = None, **more: Any) -> Body:
    """A piece of a call of index 0."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return {"index": 0, "function": function, **more}


@yaml_cases
def test_pieces_of_calls_as_servers_send_them(pieces: list[Body], calls: list[str]) -> None:
    found = [(call.get("id"), call["function"]) for call in grown(*pieces)]
    assert [f"{name} {said['name']} {said['arguments']}" for name, said in found] == calls
