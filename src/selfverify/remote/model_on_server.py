"""A model behind an OpenAI-compatible server, named by one text: ``URL#MODEL``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from selfverify.core.errors import ConfigError
from selfverify.remote.client import OnLost, OpenAIClient
from selfverify.remote.connection import ServerConfig, server_url


@dataclass(frozen=True, slots=True)
class ModelOnServer:
    """One model of one server."""

    server: ServerConfig
    model: str

    @classmethod
    def of(cls, address: str, what: str, timeout_s: float = 120.0, tries: int = 3) -> Self:
        """Make one from an address of the form ``URL#MODEL``.

        Args:
            address: The address.
            what: What it is given as, which errors name.
            timeout_s: See `ServerConfig`.
            tries: See `ServerConfig`.

        Raises:
            ConfigError: The address has another form.
        """
        url, _, model = address.partition("#")
        if not model:
            raise ConfigError(f"{what}: a model behind a server is given as URL#MODEL, not {address!r}")
        server_url(url)
        return cls(ServerConfig(url, timeout_s=timeout_s, tries=tries), model)

    @property
    def address(self) -> str:
        """``URL#MODEL``, with the path that is asked."""
        return f"{server_url(self.server.url)}#{self.model}"


class BoundedClient(OpenAIClient):
    """A client that sends few requests at the same time; the others wait here, and their time has not begun.

    Args:
        server: The server.
        at_once: The most requests that wait for it.
    """

    def __init__(self, server: ServerConfig, at_once: int) -> None:
        super().__init__(server)
        self._room = asyncio.Semaphore(at_once)

    async def chat(
        self, body: Mapping[str, Any], on_lost: OnLost | None = None, until: float | None = None
    ) -> dict[str, Any]:
        """See `OpenAIClient.chat`."""
        async with self._room:
            return await super().chat(body, on_lost, until)
