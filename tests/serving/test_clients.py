"""OpenAI's own clients, Python and JavaScript, against the gateway: streaming or not, with images."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from serving_servers import Body, FakeUpstream, Loop, tagged

JS = Path(__file__).parent / "js"
ANSWER = "one two three four five six seven"
KEYS = ["of-a-client"]


def write(body: Body, i: int) -> str:
    return tagged(ANSWER, "0.9") if i == 1 else tagged("something else", "0.1")


def fault(body: Body) -> Any:
    return "slow" if body.get("user") == "slow" else None


@pytest.fixture
def fake() -> FakeUpstream:
    return FakeUpstream(write=write, fault=fault)


@pytest.fixture
def address(fake: FakeUpstream, servers: Loop) -> str:
    return servers.before(fake, keys=KEYS)[0]


@pytest.fixture
def client(address: str) -> Any:
    with openai.OpenAI(base_url=address, api_key="of-a-client", max_retries=0) as found:
        yield found


@pytest.fixture
def messages(picture: str) -> Any:
    image = {"type": "image_url", "image_url": {"url": picture}}
    content = [image, {"type": "text", "text": "What is shown?"}]
    return [{"role": "user", "content": content}]


def all_gone(fake: FakeUpstream) -> bool:
    """Whether every call upstream has ended, within some seconds."""
    for _ in range(500):
        if not fake.open:
            return True
        time.sleep(0.01)
    return False


def test_python(client: openai.OpenAI, messages: Any, fake: FakeUpstream) -> None:
    assert [model.id for model in client.models.list()] == ["m", "m@plain"]
    reply = client.chat.completions.create(
        model="m", messages=messages, n=2, extra_body={"best_of": {"n": 3}}
    )
    texts = [choice.message.content for choice in reply.choices]
    assert texts == [f"<think>.</think><answer>{a}</answer>" for a in (ANSWER, "something else")]
    assert reply.choices[0].verification["score"] == 0.9  # type: ignore[attr-defined]
    assert reply.best_of["samples_used"] == 3  # type: ignore[attr-defined]
    assert reply.usage is not None and reply.usage.completion_tokens == 21
    assert reply.id.startswith("chatcmpl-") and reply.model == "m"
    assert fake.seen[0]["messages"][0]["content"][0] == messages[0]["content"][0]


def test_python_streaming(client: openai.OpenAI, messages: Any) -> None:
    stream = client.chat.completions.create(
        model="m@bo3,strategy=best", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == f"<think>.</think><answer>{ANSWER}</answer>"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 21
    with client.chat.completions.stream(model="m", messages=messages) as events:
        final = events.get_final_completion()
    assert ANSWER in (final.choices[0].message.content or "")


def test_python_errors_have_their_types(client: openai.OpenAI, messages: Any, address: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="m", messages=messages, extra_body={"best_of": {"n": 0}})
    assert bad.value.param == "best_of.n" and bad.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError) as gone:
        client.chat.completions.create(model="other", messages=messages)
    assert (gone.value.param, gone.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=address, api_key="wrong").models.list()


def test_javascript(address: str, picture: str, fake: FakeUpstream) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (JS / "node_modules" / "openai").is_dir():
        pytest.skip("there is no package openai: `npm ci` in tests/serving/js, which `make test` does")
    done = subprocess.run(
        [node, "client.mjs", address, picture], cwd=JS, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = f"<think>.</think><answer>{ANSWER}</answer>"
    assert found["models"] == ["m", "m@plain"]
    assert found["answers"] == [text, "<think>.</think><answer>something else</answer>"]
    assert found["verification"]["score"] == 0.9
    assert found["usage"]["completion_tokens"] == found["streamedUsage"]["completion_tokens"] == 21
    assert found["streamed"] == found["helped"] == text and found["finish"] == "stop"
    refused = {"status": 400, "type": "invalid_request_error", "param": "best_of.strategy"}
    assert found["error"] == refused | {"name": "BadRequestError"}
    assert found["left"] == "APIUserAbortError" and all_gone(fake) and fake.left == 1
