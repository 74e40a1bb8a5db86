"""JSON as clients can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from pydantic_core import to_json


def json_bytes(data: Any) -> bytes:
    """Return data as JSON. NaN and Infinity, which servers write and JSON does not know, become nulls."""
    return to_json(data, inf_nan_mode="null")


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response of JSON."""
    return web.Response(
        body=json_bytes(data),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )
