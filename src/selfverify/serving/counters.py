"""The counters that ``/metrics`` shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from selfverify.serving.request_record import RequestRecord

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1)


class Metrics:
    """One gateway's counters. Labels take few values: never a key, a prompt or a client's name."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "selfverify_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "selfverify_request_seconds", "From the first byte to the last.", ["path"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.first_token = Histogram(
            "selfverify_first_token_seconds", "Until a streamed answer's first part was sent.", ["path"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.upstream_seconds = Histogram(
            "selfverify_upstream_seconds", "In which calls to the model server were open.", ["path"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.upstream_share = Histogram(
            "selfverify_upstream_share", "Of a request's time, that in which such calls were open.", ["path"],
            buckets=_SHARES, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge("selfverify_in_flight", "Requests being worked on.", registry=registry)
        self.candidates = Counter("selfverify_candidates", "Candidates that arrived.", registry=registry)
        self.stopped = Counter("selfverify_stopped", "Why sampling ended.", ["reason"], registry=registry)
        self.abstained = Counter("selfverify_abstained", "Answers withheld.", registry=registry)
        self.cancelled = Counter("selfverify_cancelled", "Clients that left.", registry=registry)
        self.tokens = Counter("selfverify_tokens", "Tokens by kind.", ["kind"], registry=registry)
        self.upstream = Counter(
            "selfverify_upstream_tries", "Calls to the model server by outcome.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self.batch = Histogram(
            "selfverify_batch_candidates", "Candidates sampled together by the own model.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=registry,
        )  # fmt: skip

    def observe(self, path: str, status: int, seconds: float, record: RequestRecord) -> None:
        """Count a request that is over. ``path`` is a route's own, not what a client wrote."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)
        if record.first_s is not None:
            self.first_token.labels(path).observe(record.first_s)
        if record.origin.calls:
            waited = record.origin.seconds
            self.upstream_seconds.labels(path).observe(waited)
            self.upstream_share.labels(path).observe(min(1.0, waited / seconds) if seconds else 0.0)

    def text(self) -> bytes:
        """Return the counters in Prometheus's format."""
        return generate_latest(self.registry)
