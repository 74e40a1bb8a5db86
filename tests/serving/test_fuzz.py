"""Whatever is asked and said by a server: one well-formed answer or error, and nothing of it in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from typing import Any

import pytest
import requests
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfverify.serving.config import GatewayConfig
from serving_servers import CHAT, FakeUpstream, Loop, tagged

SECRET = "my-secret"

WORDS = st.sampled_from(
    ["", "9", SECRET, tagged("9"), tagged(SECRET, "nan"), "<score>", "m", "user", "stop", "\x00é"]
)
SCALARS = st.none() | st.booleans() | st.integers(-2, 70) | st.floats(width=16) | WORDS


def objects(inner: Any, *names: str) -> Any:
    """Objects with some of these fields."""
    return st.dictionaries(st.sampled_from(names), inner, max_size=5)


PARTS = ("type", "text", "image_url", "url", "file", "file_data", "content", "tool_result")
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | objects(inner, *PARTS), max_leaves=6
)
MESSAGES = st.lists(objects(ANYTHING, "role", "content", "images", "tool_calls"), max_size=3)
CHOOSING = "n strategy verifier stop content samples progress budget_tokens abstain_below"
BEST_OF = objects(SCALARS, *CHOOSING.split())
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "m@plain", "m@bo2", "m@bo2,verifier=soft", "m@bo", "other"]) | SCALARS,
        "messages": MESSAGES | ANYTHING,
        "best_of": BEST_OF | SCALARS,
        "n": SCALARS,
        "stream": st.booleans() | SCALARS,
        "logprobs": st.booleans(),
        "temperature": SCALARS,
        "stream_options": objects(SCALARS, "include_usage"),
        "tools": ANYTHING,
        "stop": ANYTHING,
        "x": ANYTHING,
    },
)
VALID = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "m@plain", "m@bo1", "m@bo2,verifier=soft", "m@bo2,verifier=judge"]),
        "stream": st.booleans(),
        "logprobs": st.booleans(),
        "best_of": st.none() | st.builds(dict, content=st.sampled_from(["text", "raw", "answer"])),
    }
)
"""Requests that reach the server."""
ASKED = st.builds(
    lambda more: {"model": "m", "messages": [{"role": "user", "content": SECRET}], **more}, VALID | FIELDS
)

CALLS = st.lists(objects(ANYTHING, "index", "id", "type", "function", "custom") | SCALARS, max_size=3)
ENTRIES = st.lists(objects(ANYTHING, "token", "logprob", "top_logprobs", "bytes") | SCALARS, max_size=3)
SAID = st.fixed_dictionaries(
    {},
    optional={"content": WORDS | ANYTHING, "tool_calls": CALLS | SCALARS, "refusal": SCALARS, "z": ANYTHING},
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | SCALARS,
        "message": SAID | ANYTHING,
        "delta": SAID | ANYTHING,
        "finish_reason": st.just("stop") | SCALARS,
        "logprobs": st.builds(lambda e: {"content": e}, ENTRIES) | ANYTHING,
    },
)
REPLY = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICE | SCALARS, max_size=3) | SCALARS,
        "usage": objects(ANYTHING, "prompt_tokens", "completion_tokens", "completion_tokens_details")
        | ANYTHING,
        "error": ANYTHING,
        "data": ANYTHING,
        "service_tier": ANYTHING,
    },
)


@dataclass(frozen=True)
class Says:
    """A server's reply."""

    status: int
    chunks: list[Any]
    ends: bytes

    def response(self, stream: bool) -> web.Response:
        parts = [json.dumps(chunk).encode() for chunk in self.chunks]
        if stream:
            events = b"".join(b"data: " + part + b"\n\n" for part in parts) + self.ends
            return web.Response(body=events, status=self.status, content_type="text/event-stream")
        body = (parts or [b""])[0] + (self.ends if not self.ends.startswith(b"data") else b"")
        return web.Response(body=body, status=self.status, content_type="application/json")


SAYS = st.builds(
    Says,
    st.sampled_from([200, 200, 200, 200, 400, 401, 404, 429, 500, 204]),
    st.lists(REPLY | ANYTHING, max_size=4),
    st.sampled_from([b"data: [DONE]\n\n", b"data: [DONE]\n\n", b"", b"data: {", b"\xff", b"}"]),
)


Target = tuple[FakeUpstream, str, MemoryHandler]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A server that is told what to say, the gateway before it, and what is logged."""
    loop, fake, log = Loop(), FakeUpstream(), MemoryHandler(1_000_000, logging.CRITICAL)
    root = logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    yield fake, loop.before(fake, GatewayConfig(timeout=5.0), tries=1)[0], log
    loop.close()
    root.removeHandler(log)
    root.setLevel(level)


def strict(text: str) -> Any:
    """JSON as clients in other languages read it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def check(target: Target, body: Any, says: Says) -> None:
    fake, url, log = target
    fake.says = lambda body: says.response(bool(body.get("stream")))
    log.buffer.clear()
    headers = {"Content-Type": "application/json"}
    reply = requests.post(f"{url}/{CHAT}", data=json.dumps(body), headers=headers, timeout=30)
    text = reply.content.decode()
    lines = [log.format(record) for record in log.buffer]
    if reply.headers["Content-Type"].startswith("text/event-stream"):
        events = [e for e in text.split("\n\n") if "data:" in e and not e.startswith("event: candidate")]
        data = [
            line[5:].strip() for event in events for line in event.split("\n") if line.startswith("data:")
        ]
        found = [strict(part) for part in data if part != "[DONE]"]
        errors = [chunk for chunk in found if set(chunk) == {"error"} and chunk["error"]]
        assert len(errors) + data.count("[DONE]") == 1, text
    else:
        found = [strict(text)]
        is_answer = isinstance(found[0], dict) and "choices" in found[0]
        assert is_answer if reply.status_code == 200 else (set(found[0]) == {"error"}), text
        errors = [] if reply.status_code == 200 else found
    for error in errors:
        told = error["error"]
        assert told["message"] and "internal_error" not in (told["code"], told["type"]), (
            error,
            lines,
        )
    assert not [line for line in lines if SECRET in line]


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(ASKED, SAYS)
def test_one_answer_or_error(target: Target, asked: Any, says: Says) -> None:
    check(target, asked, says)
