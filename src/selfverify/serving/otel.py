"""Spans for OpenTelemetry. They tell names, numbers and times, and nothing of what a request says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.version import __version__
from selfverify.remote.origin import Origin
from selfverify.serving.best_of import BestOf
from selfverify.serving.request_record import AnsweredModels, RequestRecord
from selfverify.serving.tracing import Tracing

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigError(f"--otel needs more: pip install 'selfverify[otel]' ({error})") from None

_W3C = TraceContextTextMapPropagator()
"""Reads and writes the headers ``traceparent`` and ``tracestate``."""

_CLOSING_S = 5.0
"""Seconds that the last spans have to be sent."""


class OtelTracing(Tracing):
    """Makes spans with OpenTelemetry's SDK.

    Args:
        processor: Gets the spans. By default they are sent to a collector; OpenTelemetry's own variables say
            to which, under what name, and which share of them.
    """

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "unknown")).startswith("unknown"):
            resource = resource.merge(Resource({SERVICE_NAME: "selfverify"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("selfverify", __version__)
        self._models = AnsweredModels()

    def record(self, headers: Mapping[str, str]) -> RequestRecord:
        """See `Tracing`."""
        return RequestRecord(TracedOrigin(self._tracer, headers, self._models))

    @contextmanager
    def request(
        self, record: RequestRecord, headers: Mapping[str, str], method: str, path: str
    ) -> Iterator[None]:
        """See `Tracing`."""
        with self._tracer.start_as_current_span(
            f"{method} {path}",
            _W3C.extract(headers),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": path},
            record_exception=False,  # its text may quote a request
            set_status_on_exception=False,
        ) as span:
            record.trace = f"{span.get_span_context().trace_id:032x}"
            try:
                yield
            finally:
                _tell(span, {"http.response.status_code": record.status, "error.type": record.code})
                _tell(span, {"selfverify.key": record.key, "gen_ai.request.model": record.model})
                if record.usage is not None:
                    usage = record.usage
                    written = usage.candidate_tokens + usage.verification_tokens
                    _tell(span, {"gen_ai.usage.input_tokens": usage.prompt_tokens})
                    _tell(span, {"gen_ai.usage.output_tokens": written})
                if record.status >= 500:
                    span.set_status(Status(StatusCode.ERROR))

    @contextmanager
    def selection(self, record: RequestRecord, settings: BestOf) -> Iterator[None]:
        """See `Tracing`."""
        with self._tracer.start_as_current_span(
            "selection", record_exception=False, set_status_on_exception=False
        ) as span:
            _tell(span, {"selfverify.n": settings.n, "selfverify.strategy": settings.strategy})
            try:
                yield
            finally:
                _tell(span, {"selfverify.candidates": record.candidates})
                _tell(span, {"selfverify.stopped": record.stopped})
                if record.candidates is None:
                    span.set_status(Status(StatusCode.ERROR))

    async def close(self) -> None:
        """See `Tracing`. A collector that does not answer is waited for no longer than some seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSING_S)


class TracedOrigin(Origin):
    """A request whose calls have spans, which the servers that are called are told of.

    Args:
        tracer: Makes the spans.
        headers: Sent with every call.
        models: The models that servers have answered to, which spans may name.
    """

    def __init__(self, tracer: Tracer, headers: Mapping[str, str], models: AnsweredModels) -> None:
        super().__init__(headers)
        self._tracer = tracer
        self._models = models

    @contextmanager
    def call(self, path: str, model: str | None) -> Iterator[Mapping[str, str]]:
        """See `Origin`. The span is made current for nobody: a stream may be closed by another task."""
        span, answered = self._tracer.start_span(path, kind=SpanKind.CLIENT), False
        try:
            with super().call(path, model) as headers:
                sent = dict(headers)
                _W3C.inject(sent, set_span_in_context(span))
                yield sent
            answered = True
        except ServerError as error:
            _tell(span, {"http.response.status_code": error.status})
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            _tell(span, {"gen_ai.request.model": self._models.told(model, answered)})
            span.end()


def _tell(span: Span, found: Mapping[str, str | int | None]) -> None:
    for name, value in found.items():
        if value is not None:
            span.set_attribute(name, value)
