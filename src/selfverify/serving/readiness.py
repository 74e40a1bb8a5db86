"""Whether requests can be answered now, which is more than that the gateway lives."""

from __future__ import annotations

import asyncio

from aiohttp import web

from selfverify.serving.backend import Backend
from selfverify.serving.json_text import json_response

KEPT_S = 1.0
"""Seconds for which an answer is kept: everybody may ask, and servers are asked for it."""


class Readiness:
    """Says which upstreams answer. A model that runs here is ready as soon as the gateway listens."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._found: dict[str, str | None] = {}
        self._at = -KEPT_S

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """``GET /ready``: 200 while at least one upstream answers, else 503."""
        now = asyncio.get_running_loop().time()
        if now - self._at >= KEPT_S:
            self._found = await self.backend.ready()
            self._at = now
        told = [
            {"name": name, "ready": fault is None} | ({} if fault is None else {"fault": fault})
            for name, fault in self._found.items()
        ]
        is_ready = not told or any(upstream["ready"] for upstream in told)
        body = {"status": "ready" if is_ready else "unready", "backend": self.backend.name}
        return json_response(body | {"upstreams": told}, status=200 if is_ready else 503)
