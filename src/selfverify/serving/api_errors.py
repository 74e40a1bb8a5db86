"""Errors as clients are told of them, in OpenAI's envelope."""

from __future__ import annotations

from math import ceil
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from selfverify.core.errors import ConfigError, ServerError
from selfverify.serving.json_text import json_response

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An error that a client is told.

    Args:
        status: The HTTP status.
        message: The text for people.
        code: The code for programs, such as ``invalid_image``.
        param: The field of the request that is wrong.
        retry_after: Seconds after which the client may ask again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's envelope."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception) -> ApiError | None:
    """Return the error that a client is told for an exception; None for a fault of our own.

    If an upstream refuses the gateway's own key, the client is not at fault: the status is 502.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        return ApiError(400, str(error), "invalid_value")
    if isinstance(error, web.HTTPException):
        return _http_error(error)
    if not isinstance(error, ServerError):
        return None
    if error.status in (401, 403):
        # Not in the server's words: some quote the key.
        return ApiError(502, "the model server does not accept the gateway's key", "upstream_refused_key")
    return ApiError(
        error.status, error.message, error.code or "upstream_error", retry_after=error.retry_after
    )


def invalid_value(param: str, why: str) -> ApiError:
    """Return the error for a field of a request that has a wrong value."""
    return ApiError(400, f"{param}: {why}", "invalid_value", param)


def invalid(error: ValidationError, prefix: str = "") -> ApiError:
    """Return the error for a request that does not validate: its first fault."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    names = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "tagged-union"))]
    param = ".".join([prefix, *names] if prefix else names)
    code = "unknown_parameter" if fault["type"] == "extra_forbidden" else "invalid_value"
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, code, param or None)


def error_response(error: ApiError) -> web.Response:
    """Return the response that tells a client of an error."""
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, ceil(error.retry_after)))}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.body, status=error.status, headers=headers)


def _http_error(error: web.HTTPException) -> ApiError:
    """Return the error for one of aiohttp's own refusals."""
    if error.status == 413:
        return ApiError(413, "the request is too large", "request_too_large")
    if error.status == 404:
        return ApiError(
            404, "there is no such path; chat completions are at /v1/chat/completions", "not_found"
        )
    return ApiError(error.status, error.reason or "refused")
