"""The gateway before a model server: what it asks, what it returns, how it fails. By bare HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import aiohttp
import pytest
import requests
from yarl import URL

from selfverify.core.errors import ServerError
from selfverify.core.tags import SCORE_INSTRUCTION
from selfverify.selection.calibration import Calibration
from selfverify.serving.app import Gateway
from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.schemas import api_error
from serving_servers import (
    CHAT,
    Body,
    FakeUpstream,
    Loop,
    ask,
    post,
    question,
    served,
    tagged,
)
from tables import yaml_cases


def scripted(*lines: str) -> FakeUpstream:
    """Writes ``answer|score``, one per candidate."""
    return FakeUpstream(write=lambda body, i: tagged(*lines[i % len(lines)].split("|")))


def text_of(reply: Body, i: int = 0) -> str:
    return str(reply["choices"][i]["message"]["content"])


def test_the_best_is_returned_and_everything_counted() -> None:
    fake = scripted("7|0.2", "9|0.9", "7|0.3")
    status, reply = ask(fake, question(best_of={"n": 3, "strategy": "best", "samples": True}, seed=3))
    assert status == 200
    [choice] = reply["choices"]
    assert choice["message"]["content"] == "<think>.</think><answer>9</answer>"
    assert choice["verification"]["score"] == 0.9 and choice["verification"]["votes"] == 1

    assert reply["usage"]["completion_tokens"] == 21 and reply["usage"]["prompt_tokens"] == 10
    assert reply["usage"]["completion_tokens_details"]["chosen_tokens"] == 7
    assert [s["answer"] for s in reply["best_of"]["samples"]] == ["7", "9", "7"]
    assert (reply["best_of"]["stopped"], reply["best_of"]["calls"]) == ("samples", 1)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert fake.seen == [question(f"7+2? {SCORE_INSTRUCTION}", n=3, seed=3, **streamed)]


DEFAULT_CLIENTS = GatewayConfig(best_of=BestOfConfig(n=2, content="answer", refusal="content"))
"""A gateway for clients that know nothing of it."""


def streamed_text(fake: FakeUpstream, body: Body, settings: GatewayConfig) -> str:
    """The content that a client of a stream puts together."""
    lines = served(fake, lambda s, url, _: events(s, url, body | {"stream": True}), settings=settings)
    parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in parts if c["choices"])


@yaml_cases
def test_clients_that_know_nothing_see_no_tags(text: str, shown: str) -> None:
    fake = FakeUpstream(write=lambda body, i: text)
    _, reply = ask(fake, question(), DEFAULT_CLIENTS)
    assert text_of(reply) == shown
    assert streamed_text(fake, question(), DEFAULT_CLIENTS) == shown


def test_an_answer_in_a_format_of_its_own_stays_as_it_is() -> None:
    """A schema's text may speak of tags; where the gateway's tags were asked for they are taken out."""
    text = '{"html": "<answer>9</answer><score>"}'
    fake = FakeUpstream(write=lambda body, i: text)
    formatted = question(response_format={"type": "json_object"})
    _, reply = ask(fake, formatted, DEFAULT_CLIENTS)
    assert text_of(reply) == text == streamed_text(fake, formatted, DEFAULT_CLIENTS)
    assert "<answer>" not in json.dumps(fake.seen[0]["messages"])
    fake = scripted("9|0.9")
    _, reply = ask(fake, formatted | {"best_of": {"instruction": True}}, DEFAULT_CLIENTS)
    assert text_of(reply) == "9" and "<answer>" in json.dumps(fake.seen[0]["messages"])


def test_a_box_between_those_that_were_written() -> None:
    fake = FakeUpstream(write=lambda body, i: tagged(f"[{i}, 0, {10 + i}, 10]"))
    asked = question(best_of={"n": 2, "answers": "box", "strategy": "majority"})
    _, reply = ask(fake, asked, DEFAULT_CLIENTS)
    assert text_of(reply) == "0.5 0 10.5 10"
    _, reply = ask(scripted("[1, 0, 11, 10]|0.5"), asked, DEFAULT_CLIENTS)
    assert text_of(reply) == "[1, 0, 11, 10]"


def test_greedy_is_asked_once() -> None:
    fake = scripted("9|0.9")
    _, reply = ask(fake, question(temperature=0))
    assert fake.seen[0].get("n") is None and reply["best_of"]["stopped"] == "greedy"
    _, reply = ask(fake, question(temperature=0, best_of={"temperature": 1.0}))
    assert fake.seen[1]["n"] == 8 and fake.seen[1]["temperature"] == 1.0
    _, reply = ask(fake, question(n=3, temperature=0))
    assert fake.seen[2]["n"] == 3 == len(reply["choices"])


def test_early_stop_and_budget() -> None:
    fake = scripted("9|0.9")
    _, reply = ask(fake, question(best_of={"stop": "beta"}))
    assert (reply["best_of"]["samples_used"], reply["best_of"]["stopped"]) == (4, "confident")
    assert [body.get("n", 1) for body in fake.seen] == [2, 1, 1]
    fake = scripted("1|0.5", "2|0.5", "3|0.5")
    for best_of, used in (({"stop": "beta", "budget_tokens": 30, "start": 3}, 4), ({"budget_tokens": 25}, 3)):
        _, reply = ask(fake, question(best_of=best_of))
        assert (reply["best_of"]["samples_used"], reply["best_of"]["stopped"]) == (used, "tokens")


def test_abstention() -> None:
    asking = question(best_of={"n": 2, "strategy": "best", "abstain_below": 0.95})
    status, reply = ask(scripted("9|0.9"), asking)
    message = reply["choices"][0]["message"]
    assert status == 200 and message["content"] is None and "0.90" in message["refusal"]
    assert reply["choices"][0]["verification"]["abstained"]
    unsure = GatewayConfig(best_of=BestOfConfig(n=2, strategy="best", abstain_below=0.95, refusal="content"))
    status, reply = ask(scripted("9|0.9"), question(), unsure)
    message = reply["choices"][0]["message"]
    assert message["content"] == message["refusal"] and "0.90" in message["content"]
    assert streamed_text(scripted("9|0.9"), question(), unsure) == message["content"]
    _, reply = ask(scripted("9|0.9"), question(best_of={"abstain_below": 0.9}), unsure)
    assert "9" in text_of(reply) and not reply["choices"][0]["verification"]["abstained"]


def test_a_calibration_is_used_where_it_fits() -> None:
    use = {
        "verifier": "inline", "strategy": "best", "samples_per_problem": 2,
        "options": {"temperature": 0.1, "share": 0.25, "iou": 0.5},
    }  # fmt: skip
    fitted = Calibration("isotonic", (0.0, 1.0), (0.0, 0.5), threshold=0.2, fitted_on=use)
    _, reply = ask(scripted("9|0.9"), question(best_of={"n": 2, "strategy": "best"}), calibration=fitted)
    assert reply["choices"][0]["verification"]["probability"] == pytest.approx(0.45)
    assert reply["best_of"]["calibrated"] and not reply["choices"][0]["verification"]["abstained"]
    _, reply = ask(scripted("9|0.3"), question(best_of={"n": 2, "strategy": "best"}), calibration=fitted)
    assert reply["choices"][0]["verification"]["abstained"]
    _, reply = ask(scripted("9|0.9"), question(best_of={"n": 3, "strategy": "best"}), calibration=fitted)
    assert reply["choices"][0]["verification"]["probability"] is None and not reply["best_of"]["calibrated"]


def test_nothing_can_be_read() -> None:
    """The first candidate is returned, and said to be no answer."""
    fake = FakeUpstream(write=lambda body, i: f"<answer>{i}")
    status, reply = ask(fake, question())
    found = reply["choices"][0]["verification"]
    assert status == 200 and text_of(reply) == "<answer>0"
    assert found["answer"] is None and found["confidence"] == 0 and "could be read" in found["reason"]


def test_without_scores_there_is_a_vote() -> None:
    fake = FakeUpstream(write=lambda body, i: "7" if i else "9")
    _, reply = ask(fake, question(best_of={"n": 3}))
    assert text_of(reply) == "7" and reply["choices"][0]["verification"]["strategy"] == "majority"


def test_soft_scores_of_a_server_and_of_one_without_probabilities() -> None:
    body = question(best_of={"n": 2, "verifier": "soft"})
    fake = scripted("9|0.9")
    _, reply = ask(fake, body)
    assert reply["choices"][0]["verification"]["score"] == pytest.approx(0.725)
    fake.knows_logprobs = False
    _, reply = ask(fake, body)
    assert reply["choices"][0]["verification"]["score"] == 0.9


def test_a_slow_body_keeps_to_the_timeout() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + b'{"model"')
        line = await reader.readline()
        writer.close()
        return line

    assert b"408" in served(FakeUpstream(), use, GatewayConfig(timeout=0.2))


@yaml_cases
def test_an_upstream_that_fails(fault: Any, status: int, code: str) -> None:
    fake = FakeUpstream(fault=lambda body: fault, knows_streams=False)
    waits = (1.0, 0.3) if fault == "slow" else (60.0, 30.0)
    found, reply = ask(fake, question(), GatewayConfig(timeout=waits[0]), timeout_s=waits[1])
    assert (found, reply["error"]["code"]) == (status, code)


def test_who_refuses_the_gateways_key_may_quote_it_to_nobody() -> None:
    told = api_error(ServerError("incorrect API key: sk-secret", status=401))
    assert told is not None and told.status == 502 and "sk-secret" not in str(told.response.text)


def test_a_client_that_leaves_ends_the_calls_upstream() -> None:
    fake = FakeUpstream(fault=lambda body: "slow")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        for stream in (False, True):
            asking = asyncio.ensure_future(
                post(session, f"{url}/chat/completions", question(stream=stream, best_of={"n": 2}))
            )
            while not fake.open:
                await asyncio.sleep(0.01)
            asking.cancel()
            while fake.open or gateway.in_flight:
                await asyncio.sleep(0.01)
        assert fake.left == 2

    served(fake, use, timeout_s=100.0)  # so that nothing but the leaving can have ended them


async def events(session: aiohttp.ClientSession, url: str, body: Body) -> list[str]:
    """A stream's lines that say something."""
    async with session.post(f"{url}/chat/completions", json=body) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream"), await response.text()
        return [line for line in (await response.text()).splitlines() if line]


def test_a_stream() -> None:
    answer = "one two three four five six seven eight nine ten"
    fake = FakeUpstream(write=lambda body, i: tagged(answer, "0.8"), delay_s=0.2)
    body = question(stream=True, best_of={"n": 3}, stream_options={"include_usage": True})
    lines = served(fake, lambda s, url, _: events(s, url, body), keep_alive_s=0.05)
    comments = [line for line in lines if line.startswith(":")]
    assert ": working" in comments
    assert comments[-3:] == [f": candidate {i} of 3, score 0.800" for i in (1, 2, 3)]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data:")]
    assert len(comments) + len(data) == len(lines) and data[-1] == "[DONE]"
    chunks = [json.loads(part) for part in data[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    parts = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
    assert "".join(parts) == f"<think>.</think><answer>{answer}</answer>"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["choices"][0]["verification"]["score"] == 0.8
    assert chunks[-2]["best_of"]["samples_used"] == 3
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 21
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert fake.seen[0]["stream"] and fake.seen[0]["n"] == 3


def test_a_plain_stream_is_the_upstreams_own() -> None:
    """Chunk by chunk; with the upstream's refusal, or an error where it breaks off."""
    fake = scripted("7|0.2", "9|0.9")
    body = question(stream=True, n=2, stream_options={"include_usage": True}) | {"model": "m@plain"}
    lines = served(fake, lambda s, url, _: events(s, url, body))
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    parts = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
    first, second = tagged("7", "0.2"), tagged("9", "0.9")
    assert parts == [first[:9], first[9:], "", second[:9], second[9:], ""]
    assert chunks[-1]["usage"]["completion_tokens"] == 14 and lines[-1] == "data: [DONE]"
    assert fake.seen[0] == body | {"model": "m"}
    fake = FakeUpstream(fault=lambda body: "cut", write=lambda body, i: tagged(str(i)))
    lines = served(fake, lambda s, url, _: events(s, url, body))
    assert json.loads(lines[-1][6:])["error"]["code"] == "cut_off"
    status, reply = ask(FakeUpstream(fault=lambda body: 400), body)
    assert status == 400 and "told to fail" in reply["error"]["message"]


def test_errors_in_streams() -> None:
    """Before anything was written, an error has its status; after that it is the last event."""
    status, reply = ask(FakeUpstream(fault=lambda body: 500), question(stream=True))
    assert status == 500 and reply["error"]["code"] == "upstream_error"
    fake = FakeUpstream(fault=lambda body: 500, delay_s=0.2)
    lines = served(fake, lambda s, url, _: events(s, url, question(stream=True)), keep_alive_s=0.05)
    assert json.loads(lines[-1][6:])["error"]["code"] == "upstream_error"


def test_models_health_and_metrics(servers: Loop) -> None:
    url, _ = servers.before(FakeUpstream())
    for body in (question(), question(best_of={"n": 0})):
        requests.post(f"{url}/{CHAT}", json=body, timeout=10)
    paths = ("models", "../health")
    models, health = (requests.get(f"{url}/{path}", timeout=10).json() for path in paths)
    metrics = requests.get(f"{url[:-3]}/metrics", timeout=10).text
    assert [model["id"] for model in models["data"]] == ["m", "m@plain"]
    assert models["data"][0]["best_of"] == BestOfConfig(verifier="inline").model_dump()
    assert "best_of" not in models["data"][1]
    assert health["status"] == "ok"
    for line in (
        'selfverify_requests_total{path="/v1/chat/completions",status="200"} 1.0',
        'selfverify_requests_total{path="/v1/chat/completions",status="400"} 1.0',
        "selfverify_candidates_total 8.0",
        'selfverify_tokens_total{kind="candidate"} 56.0',
        'selfverify_request_seconds_count{path="/v1/chat/completions"} 2.0',
        'selfverify_upstream_tries_total{outcome="ok"}',
    ):
        assert line in metrics
    known = {"path", "le", "status", "kind", "outcome", "reason"}
    assert known >= set(re.findall(r"[{,](\w+)=", metrics))


def test_health_says_whether_the_server_answers(servers: Loop) -> None:
    """Also one that lists no models; it is asked at most once a second."""
    fake = FakeUpstream()
    url, gateway = servers.before(fake)
    for fault, expected in ((None, (200, None)), (404, (200, None)), (500, (503, "refused"))):
        fake.models_fault, gateway._asked_at = fault, -1.0
        for _ in range(2):
            reply = requests.get(f"{url[:-3]}/health", timeout=10)
            assert (reply.status_code, reply.json().get("fault")) == expected
    assert fake.listed == 3


def test_too_many_at_once() -> None:
    fake = FakeUpstream(delay_s=0.3)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[int]:
        asking = [post(session, f"{url}/chat/completions", question()) for _ in range(5)]
        return sorted([status for status, _ in await asyncio.gather(*asking)])

    assert served(fake, use, GatewayConfig(max_in_flight=2)) == [200, 200, 503, 503, 503]


def with_parts(*parts: Any, **more: Any) -> Body:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


@pytest.mark.parametrize("path", ["chat/completions", "verify"])
def test_an_upstream_gets_messages_as_they_are(path: str) -> None:
    """What it fetches is its own affair."""
    parts = [
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        {"type": "text", "text": "see http://x/"},
    ]
    fake, more = FakeUpstream(), {"answer": "9"} if path == "verify" else {"best_of": False}
    status, _ = ask(fake, with_parts(*parts, **more), path=path)
    assert status == 200 and fake.seen[0]["messages"][0]["content"][:4] == parts[:4]


def replying(*replies: Body) -> FakeUpstream:
    """Says these, whatever it is asked."""
    left = list(replies)
    return FakeUpstream(says=lambda body: left.pop(0))


def choice(finish: str = "stop", **message: Any) -> Body:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


@pytest.mark.parametrize("model", ["m@bo1", "m@plain"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_message_without_a_text_is_an_answer(model: str, stream: bool) -> None:
    """Refusals, and thoughts that the length limit cut off. They are not asked for again."""
    cases = [
        choice(content=None, refusal="no"),
        choice("length", content=None, reasoning_content="hm"),
        choice("tool_calls", content=None, tool_calls=[{"id": "1", "function": {"name": "f"}}]),
    ]

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[Any]:
        body = question(stream=stream) | {"model": model}
        if not stream:
            return [(await post(session, f"{url}/chat/completions", body))[1]["choices"][0] for _ in cases]
        found = []
        for _ in cases:
            lines = await events(session, url, body)
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert lines[-1] == "data: [DONE]"
            assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
            whole: Body = {"message": {}}
            for part in (chunk["choices"][0] for chunk in chunks):
                whole["message"] |= {name: v for name, v in part["delta"].items() if v is not None}
                whole |= {"finish_reason": part["finish_reason"]}
            found.append(whole)
        return found

    refused, thought, called = served(replying(*cases), use)
    assert refused["message"]["refusal"] == "no" and not refused["message"].get("content")
    assert (thought["finish_reason"], thought["message"]["reasoning_content"]) == ("length", "hm")
    assert called["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert not stream or called["message"]["tool_calls"][0]["index"] == 0


def test_a_fault_of_the_gateways_own_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an event: a second response in the middle of a stream would be noise."""

    async def broken(*args: Any, **more: Any) -> None:
        await asyncio.sleep(0.2)
        raise TypeError("told to")

    monkeypatch.setattr("selfverify.serving.app.select", broken)
    lines = served(FakeUpstream(), lambda s, url, _: events(s, url, question(stream=True)), keep_alive_s=0.05)
    assert json.loads(lines[-1][6:])["error"]["code"] == "internal_error"


def test_a_judge_rates_each_distinct_answer_once_however_often_one_looks() -> None:
    judged: list[str] = []

    def write(body: Body, i: int) -> str:
        asked = body["messages"]
        if len(asked) == 1:
            return tagged("97"[i], "0.5")
        judged.append(asked[1]["content"])
        return f"<score>{0.9 if '7' in asked[1]['content'].partition('<answer>')[2] else 0.1}</score>"

    fake = FakeUpstream(write=write, knows_logprobs=False)
    asking = {"n": 6, "strategy": "best", "verifier": "judge", "stop": "posterior", "confidence": 1.0}
    _, reply = ask(fake, question(best_of=asking | {"start": 2, "step": 2}))
    found = reply["choices"][0]["verification"]
    assert (found["answer"], found["score"], reply["best_of"]["samples_used"]) == ("7", 0.9, 6)
    assert len(judged) == len(set(judged)) == 2 and "<score>" not in "".join(judged)
    assert reply["usage"]["completion_tokens_details"]["verification_tokens"] == 14


def test_verify(picture: str) -> None:
    """Answers that cannot be judged have no score; a judge reads the same question beside an image."""
    lost: set[str] = set()
    fake = FakeUpstream(
        write=lambda body, i: f"<score>0.{body['messages'][1]['content']}</score>",
        fault=lambda body: 400 if body["messages"][1]["content"] in lost else None,
        knows_logprobs=False,
    )

    def scores(answer: Any, **more: Any) -> tuple[int, Any]:
        status, reply = ask(fake, question(answer=answer, **more), path="verify")
        return status, [result["score"] for result in reply.get("results", ())]

    assert scores(["7", "9"]) == (200, [0.7, 0.9])
    status, one = ask(fake, question(answer="9"), path="verify")
    assert status == 200 and (one["score"], one["usage"]["completion_tokens"]) == (0.9, 7)
    assert [scores(wrong)[0] for wrong in ([], "", 3)] == [400] * 3
    assert fake.seen[-1]["messages"][0]["content"] == f"7+2? {SCORE_INSTRUCTION}"
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "7+2?"}]
    assert scores("9", messages=[{"role": "user", "content": parts}])[0] == 200
    seen = fake.seen[-1]["messages"][0]["content"]
    assert seen == [parts[0], {"type": "text", "text": f"7+2? {SCORE_INSTRUCTION}"}]
    lost |= {"7"}
    assert scores(["7", "9"]) == (200, [None, 0.9])
    lost |= {"9"}
    assert scores(["7", "9"])[0] == 400


def test_tools_are_chosen_by_vote() -> None:
    """Calls of tools arrive whole, and the same call counts as the same answer."""
    calls = [{"id": f"c{x}", "type": "function", "function": {"name": "tap", "arguments": x}} for x in "211"]
    choices = [choice("tool_calls", content=None, tool_calls=[call])["choices"][0] for call in calls]
    replies = replying({"choices": [one | {"index": i} for i, one in enumerate(choices)]})
    _, reply = ask(replies, question(best_of={"n": 3}, tools=[{"type": "function"}]))
    [chosen] = reply["choices"]
    assert chosen["message"]["tool_calls"][0]["function"] == {"name": "tap", "arguments": "1"}
    assert chosen["finish_reason"] == "tool_calls" and chosen["message"]["content"] is None


@pytest.mark.parametrize(("fault", "stopped"), [("slow", "deadline"), (400, "fault")])
def test_the_best_of_what_came(fault: Any, stopped: str) -> None:
    """Half of the candidates hang or fail: the others are chosen from, and hanging calls ended."""
    count = iter(range(100))
    fake = FakeUpstream(
        fault=lambda body: fault if body.get("n") is None and next(count) % 2 else None, knows_n=None
    )
    limit = {"timeout_s": 0.5} if fault == "slow" else {}
    begun = time.monotonic()
    status, reply = ask(fake, question(best_of={"n": 4} | limit))
    assert status == 200 and time.monotonic() - begun < 10
    found = reply["best_of"]
    assert (found["stopped"], found["samples_used"], found["samples_missing"]) == (stopped, 2, 2)
    assert (found["calls"], found["usage_complete"]) == ((4, False) if limit else (2, True))
    assert fake.left == (2 if limit else 0) and fake.open == 0
