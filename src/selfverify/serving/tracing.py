"""Spans of requests, of the selection in them and of the calls of servers. By default there are none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from selfverify.remote.origin import Origin
from selfverify.serving.best_of import BestOf
from selfverify.serving.request_record import RequestRecord


class Tracing:
    """Makes no spans. `selfverify.serving.otel.OtelTracing` makes them."""

    def record(self, headers: Mapping[str, str]) -> RequestRecord:
        """Return the record of a new request, whose calls send ``headers``."""
        return RequestRecord(Origin(headers))

    def request(
        self, record: RequestRecord, headers: Mapping[str, str], method: str, path: str
    ) -> AbstractContextManager[None]:
        """Make the span of a request.

        Args:
            record: What will be known of it at the end.
            headers: The client's, which may name a trace that it belongs to.
            method: Its method.
            path: Its route.
        """
        return nullcontext()

    def selection(self, record: RequestRecord, settings: BestOf) -> AbstractContextManager[None]:
        """Make the span of drawing candidates and choosing one; ``record`` will know what came of it."""
        return nullcontext()

    async def close(self) -> None:
        """Send what was not sent yet."""
