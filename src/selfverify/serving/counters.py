"""The counters that ``/metrics`` shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


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

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request that is over. ``path`` is a route's own, not what a client wrote."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return the counters in Prometheus's format."""
        return generate_latest(self.registry)
