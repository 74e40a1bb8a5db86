"""The connection to one model server: what is sent goes out here, and its faults become `ServerError`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.server_address import checked_address
from selfverify.remote.chat_wire import (
    decoded,
    encoded,
    garbage,
    lenient,
    read_body,
    refusal,
)

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

API_KEY_VARIABLE = "SELFVERIFY_SERVER_API_KEY"
"""Environment variable with the key that is sent; without it ``OPENAI_API_KEY``."""

LOST = {"timeout", "cut_off", "bad_reply"}
"""Faults after which the server may still have done its work, so that the call has to be counted."""

FAULTS = LOST | {"unreachable"}
"""The faults that have names of ours. A server may name its own as it likes, and as many as it likes."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where a server is and how patient to be.

    Args:
        url: The server's address; one without a path gets ``/v1``.
        api_key: The key that is sent; None takes the environment's.
        timeout_s: The longest time of one try, connecting and reading included.
        tries: How often a request is sent that fails for a passing reason.
        wait_s: The wait before the second try; each later wait is twice as long, with jitter.
        longest_wait_s: The longest wait between tries. A server that asks for more is not asked again.
        connections: The most connections that are open at once.
        most_bytes: The largest reply, in bytes.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.2
    longest_wait_s: float = 10.0
    connections: int = 1024
    most_bytes: int = 64 * 2**20


class Connection:
    """One server. Use it as an asynchronous context manager."""

    def __init__(self, settings: ServerConfig) -> None:
        self.settings = settings
        self.base = server_url(settings.url)
        key = settings.api_key or os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        settings = self.settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.connections),
            timeout=aiohttp.ClientTimeout(
                total=settings.timeout_s, sock_connect=min(10.0, settings.timeout_s)
            ),
            headers=self._headers,
            read_bufsize=2**18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def open(self, path: str, body: Mapping[str, Any] | None) -> aiohttp.ClientResponse:
        """Post a body, or get what is there; return the response, of which nothing is read yet.

        Raises:
            ServerError: The server refuses.
        """
        assert self._session is not None, "use it as a context manager"
        url = self.base / path
        if body is None:
            response = await self._session.get(url)
        else:
            response = await self._session.post(url, data=io.BytesIO(encoded(body)))
        if response.status < 400:
            return response
        async with response:
            raw = await read_body(response, self.settings.most_bytes)
            raise refusal(response.status, lenient(raw), response.headers.get("Retry-After"))

    async def reply(self, path: str, body: Mapping[str, Any] | None) -> tuple[bytes, dict[str, Any]]:
        """Return a reply's bytes, and the object in them.

        Raises:
            ServerError: The server refuses, or its reply cannot be used.
        """
        async with await self.open(path, body) as response:
            raw = await read_body(response, self.settings.most_bytes)
        return raw, decoded(raw)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that ``/v1/models`` lists.

        Raises:
            ServerError: As `reply`.
        """
        _, reply = await self.reply("models", None)
        found = reply.get("data")
        if not isinstance(found, list):
            raise garbage("its list of models has no `data`")
        return [model for model in found if isinstance(model, dict) and isinstance(model.get("id"), str)]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn aiohttp's errors into `ServerError`."""
        try:
            yield
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise self.failed("the model server cannot be reached", "unreachable", error) from None
        except TimeoutError:
            text = f"the model server did not answer within {self.settings.timeout_s:g} s"
            raise self.failed(text, "timeout", status=504) from None
        except aiohttp.InvalidURL:
            raise ConfigError(f"{self.base} is no address of a server") from None
        except aiohttp.ClientError as error:
            raise self.failed("the connection to the model server broke off", "cut_off", error) from None

    def failed(self, text: str, code: str, error: Exception | None = None, status: int = 502) -> ServerError:
        """Return the error for a fault of the connection. Its detail is for those who chose the server."""
        detail = f"{self.base}" if error is None else f"{self.base}: {str(error) or type(error).__name__}"
        return ServerError(text, status, code, retry=True, detail=detail)


def server_url(url: str) -> URL:
    """Return the address below which the endpoints are.

    Raises:
        ConfigError: It is no http or https address, or holds a password.
    """
    found = URL(checked_address(url, "http://127.0.0.1:8000/v1", f"in ${API_KEY_VARIABLE}"))
    return found if found.path not in ("", "/") else found.with_path("/v1")
