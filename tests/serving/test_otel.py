"""Spans of OpenTelemetry: of requests, selections and calls, in the client's trace and passed on."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from selfverify.core.errors import ConfigError
from selfverify.serving.app import Gateway
from selfverify.serving.log_lines import JsonFormatter
from selfverify.serving.otel import OtelTracing
from selfverify.serving.server import tracing_of
from serving_servers import Body, FakeUpstream, question, served, tagged

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
SECRET = "my-secret"


def traced(
    fake: FakeUpstream, *bodies: Body, headers: dict[str, str] = TRACED, **more: Any
) -> list[ReadableSpan]:
    """The spans of requests, in the order in which they ended."""
    kept = InMemorySpanExporter()

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        for body in bodies:
            await (await session.post(f"{url}/chat/completions", json=body, headers=headers)).read()

    served(fake, use, tracing=OtelTracing(SimpleSpanProcessor(kept)), **more)
    return list(kept.get_finished_spans())


def number(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


def above(span: ReadableSpan) -> str:
    """The number of a span's parent."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request(stream: bool) -> None:
    fake = FakeUpstream(write=lambda body, i: tagged(SECRET))
    call, selection, request = traced(fake, question(SECRET, stream=stream))
    assert [span.name for span in (request, selection, call)] == [
        "POST /v1/chat/completions", "selection", "chat/completions",
    ]  # fmt: skip
    assert [above(span) for span in (request, selection, call)] == [
        PARENT,
        number(request),
        number(selection),
    ]
    assert (request.kind, call.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 56,
    }
    assert selection.attributes == {
        "selfverify.n": 8, "selfverify.strategy": "weighted", "selfverify.candidates": 8,
        "selfverify.stopped": "samples",
    }  # fmt: skip
    assert call.attributes == {"gen_ai.request.model": "m"}
    assert not [span for span in (request, selection, call) if SECRET in span.to_json()]
    [headers] = fake.headers
    assert headers["traceparent"] == f"00-{TRACE}-{number(call)}-01" and headers["tracestate"] == "vendor=1"


def test_each_call_has_a_span() -> None:
    """Also where candidates are asked for one by one, and judged."""
    fake = FakeUpstream(knows_n=False)
    body = question(best_of={"n": 3, "verifier": "judge"})
    *calls, selection, _ = traced(fake, body, separate=True)
    assert len(calls) == len(fake.seen) and {above(call) for call in calls} == {number(selection)}
    sent = [headers["traceparent"].split("-")[2] for headers in fake.headers]
    assert sorted(sent) == sorted(map(number, calls))


def test_a_trace_that_is_not_sampled() -> None:
    """It is not sampled here either, and the server is told so: OpenTelemetry's parent-based sampling."""
    fake = FakeUpstream()
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert not traced(fake, question(), question() | {"model": "m@plain"}, headers=unsampled)
    assert len(fake.headers) == 2
    for headers in fake.headers:
        assert headers["traceparent"].startswith(f"00-{TRACE}-") and headers["traceparent"].endswith("-00")


def test_only_models_that_answer_are_named() -> None:
    """Whatever a client writes is no attribute, also where it looks like a model's name."""
    spans = traced(
        FakeUpstream(), *[question() | {"model": name} for name in ("x-1", "x-2", "m", "x-3@plain")]
    )
    named = [str((span.attributes or {}).get("gen_ai.request.model")) for span in spans]
    assert set(named) == {"None", "m"} and named.count("m") == 2


def test_a_model_that_fails_later_is_named() -> None:
    faults = iter([None, 500, 500])
    spans = traced(FakeUpstream(fault=lambda body: next(faults)), question(), question(best_of={"n": 1}))
    calls = [span.attributes or {} for span in spans if span.name == "chat/completions"]
    assert [call["gen_ai.request.model"] for call in calls] == ["m", "m"]
    assert calls[1]["http.response.status_code"] == 500


def test_without_selection() -> None:
    plain = question() | {"model": "m@plain"}
    spans = traced(FakeUpstream(), plain, plain | {"stream": True})
    assert [span.name for span in spans] == ["chat/completions", "POST /v1/chat/completions"] * 2
    assert [above(span) for span in spans] == [number(spans[1]), PARENT, number(spans[3]), PARENT]


def test_faults() -> None:
    """The tries of a call are one span."""
    fake = FakeUpstream(fault=lambda body: 500)
    call, selection, request = traced(fake, question(SECRET, n=1, best_of={"n": 1}))
    assert len(fake.seen) == 2
    assert {span.status.status_code for span in (call, selection, request)} == {StatusCode.ERROR}
    assert call.attributes is not None and call.attributes["http.response.status_code"] == 500
    assert request.attributes is not None and request.attributes["error.type"] == "upstream_error"
    assert not [span for span in (call, selection, request) if SECRET in span.to_json() or span.events]


def test_no_trace_and_a_wrong_one() -> None:
    """A new trace is begun."""
    kept = InMemorySpanExporter()

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        for headers in ({}, {"traceparent": "00-nonsense-01"}):
            await (await session.get(f"{url}/models", headers=headers)).read()

    served(FakeUpstream(), use, tracing=OtelTracing(SimpleSpanProcessor(kept)))
    roots = [span for span in kept.get_finished_spans() if span.parent is None]
    assert [span.name for span in roots] == ["GET /v1/models"] * 2


def test_the_log_names_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    traced(FakeUpstream(), question())
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["trace_id"] for line in lines if "request_id" in line] == [TRACE]


def test_off_by_default() -> None:
    fake = FakeUpstream()

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        await (await session.post(f"{url}/chat/completions", json=question(), headers=TRACED)).read()

    served(fake, use)
    assert "traceparent" not in fake.headers[0]
    assert type(tracing_of(False)) is not OtelTracing


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over OTLP, at the address that OpenTelemetry's variable names; the last when it is closed."""
    got: list[tuple[str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        got.append((request.path, await request.read()))
        return web.Response()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            app = web.Application()
            app.router.add_post("/v1/traces", take)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
            tracing = tracing_of(True)
            record = tracing.record({})
            with tracing.request(record, TRACED, "GET", "/health"):
                pass
            await tracing.close()

    asyncio.run(main())
    [(path, body)] = got
    assert (
        path == "/v1/traces" and b"GET /health" in body and b"service.name" in body and b"selfverify" in body
    )
    assert bytes.fromhex(TRACE) in body


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "selfverify.serving.otel")
    with pytest.raises(ConfigError, match=r"pip install 'selfverify\[otel\]'"):
        tracing_of(True)
