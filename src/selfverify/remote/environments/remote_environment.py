"""An environment on a server that speaks OpenEnv's wire (`wire`): ours, or anybody's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from selfverify.clients.openai_client import checked_address, read_at_most
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify.remote.environments import wire
from selfverify.remote.environments.content import ContentLimits
from selfverify.remote.environments.wire_observations import read_observation

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

KEY_VARIABLE = "SELFVERIFY_ENVIRONMENT_KEY"
"""Environment variable with the key that is sent to servers of environments."""


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """Where a server of environments is, and how patient to be.

    Args:
        url: The server's address, such as ``http://127.0.0.1:8000`` or ``http://host:8000/phone``.
        key: The key that is sent; None sends none.
        actions: ``tools`` for environments whose actions are calls of tools, ``plain`` for those with one
            kind of action, which then is the only tool: ``step``, with the action's fields as arguments.
        connect_s: Seconds that connecting may take.
        reset_s: Seconds that a reset may take.
        act_s: Seconds that a call, or reading the state, may take.
        health_s: Seconds that a check of the server's health may take.
        limits: What is accepted from the server.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    actions: Literal["tools", "plain"] = "tools"
    connect_s: float = 10.0
    reset_s: float = 300.0
    act_s: float = 60.0
    health_s: float = 10.0
    limits: ContentLimits = field(default_factory=ContentLimits)


class RemoteEnvironment(Environment):
    """One session on a server.

    A session that was broken off is lost. It is never taken up again in the middle: nobody knows what its
    server has done meanwhile. So whatever goes wrong on the way raises `EnvironmentLost`, and so does every
    later call. What the agent does wrong, the observation's ``error`` says.

    Example:
        >>> environment = RemoteEnvironment(RemoteConfig("http://127.0.0.1:8000"))  # doctest: +SKIP
        >>> first = await environment.reset({"id": "alarm"}, seed=0)
        >>> shown = await environment.act(Call("tap", {"x": 120, "y": 80}))
        >>> await environment.close()

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, settings: RemoteConfig) -> None:
        self.settings = settings
        self._base = base_url(settings.url)
        self.address = str(self._base)
        """The server's address as messages name it, without a user's name or password."""
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._tools: list[dict[str, Any]] | None = None
        self._lost = ""
        self._round = -1
        self._hears_submissions = False

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`; they are known once `open` has asked the server."""
        if self._tools is None:
            raise DataError(f"{self.address}: its tools are known after open() or reset()")
        return self._tools

    async def open(self) -> None:
        """Connect and ask for the tools; does nothing on an open session.

        Raises:
            EnvironmentLost: The server cannot be reached, has no room, refuses the key, or is none.
        """
        if self._lost:
            raise EnvironmentLost(self._lost)
        if self._tools is not None:
            return
        settings = self.settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        self._http = aiohttp.ClientSession(headers=headers)
        try:
            async with asyncio.timeout(settings.connect_s):
                self._socket = await self._http.ws_connect(
                    self._base.with_scheme("wss" if self._base.scheme == "https" else "ws") / "ws",
                    max_msg_size=settings.limits.message_bytes,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                    compress=0,
                )
        except TimeoutError:
            await self._lose(f"no connection within {settings.connect_s:g} s")
        except aiohttp.WSServerHandshakeError as error:
            await self._lose(f"it answered {error.status} to a WebSocket" + _hint(error.status))
        except (aiohttp.ClientError, OSError) as error:
            await self._lose(f"it cannot be reached: {error}")
        except BaseException:
            await self._drop("opening was broken off")
            raise
        self._tools = await (self._listed() if settings.actions == "tools" else self._plain())

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`."""
        message = wire.reset_message(task, seed)
        await self.open()
        self._round = -1
        kind, data = await self._ask(message, self.settings.reset_s, "reset")
        if kind == "error":
            if data.get("code") == wire.VALIDATION_ERROR:
                raise DataError(f"{self.address}: {_said(data)}")
            await self._lose(_said(data))
        return await self._read(kind, data)

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        self._check_begun()
        plain = {"type": "step", "data": dict(call.arguments)}
        message = plain if self.settings.actions == "plain" else wire.call_message(call)
        kind, data = await self._ask(message, self.settings.act_s, call.name)
        if kind == "error" and data.get("code") == wire.VALIDATION_ERROR:
            return StepResult(self._round, error=_said(data))  # refused, and not counted
        return await self._read(kind, data)

    async def submitted(self, message: str) -> None:
        """See `Environment`; a server that does not hear of submissions is told nothing."""
        self._check_begun()
        if not self._hears_submissions:
            return
        kind, data = await self._ask(wire.submission_message(message), self.settings.act_s, wire.SUBMITTED)
        if kind != wire.SUBMITTED:
            await self._lose(_said(data) if kind == "error" else f"it answered with {kind[:40]!r}")

    async def state(self) -> dict[str, Any] | None:
        """See `Environment`; a server that tells nothing sends an empty object."""
        kind, data = await self._ask(wire.STATE, self.settings.act_s, "state")
        if kind != "state":
            await self._lose(_said(data) if kind == "error" else f"it answered with {kind[:40]!r}")
        return data or None

    async def close(self) -> None:
        """See `Environment`."""
        if self._socket is not None and not self._lost:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._socket.send_str(wire.encode(wire.CLOSE))
                    await self._socket.close()
        await self._drop("the session is closed")

    def _check_begun(self) -> None:
        if self._round < 0 and not self._lost:
            raise DataError(f"{self.address}: reset comes before the first call")

    async def _listed(self) -> list[dict[str, Any]]:
        kind, data = await self._ask(wire.LIST_TOOLS, self.settings.act_s, "list_tools")
        shown = data.get("observation")
        if kind == "error" and data.get("code") == wire.VALIDATION_ERROR:
            await self._lose(f"it has no tools ({_said(data)}); actions='plain' is for such environments")
        if kind == "error":
            await self._lose(_said(data))
        self._hears_submissions = wire.hears_submissions(data)
        try:
            return wire.read_tools(shown.get("tools") if isinstance(shown, dict) else None)
        except DataError as error:
            await self._lose(str(error))

    async def _plain(self) -> list[dict[str, Any]]:
        """The only tool of an environment without tools; ``/schema`` says which fields its actions have."""
        assert self._http is not None
        most = self.settings.limits.message_bytes
        try:
            async with asyncio.timeout(self.settings.act_s), self._http.get(self._base / "schema") as reply:
                reply.raise_for_status()
                raw = await read_at_most(reply.content, most)
            if raw is None:
                raise DataError(f"it is larger than {most:,} bytes")
            schema = wire.decode_object(raw).get("action")
        except TimeoutError:
            await self._lose(f"no answer to /schema within {self.settings.act_s:g} s")
        except (aiohttp.ClientError, OSError, DataError) as error:
            await self._lose(f"its /schema is of no use: {error}")
        shape = schema if isinstance(schema, dict) else {}
        fields = shape.get("properties")
        own = {k: v for k, v in fields.items() if k != "metadata"} if isinstance(fields, dict) else {}
        return wire.read_tools(
            [
                {
                    "name": "step",
                    "description": shape.get("description", ""),
                    "input_schema": {**shape, "properties": own},
                }
            ]
        )

    async def _ask(self, message: Mapping[str, Any], limit_s: float, what: str) -> tuple[str, dict[str, Any]]:
        """Send a message and return the type and the data of the reply."""
        if self._lost:
            raise EnvironmentLost(self._lost)
        if self._socket is None:
            raise DataError(f"{self.address}: open() or reset() comes first")
        encoded = wire.encode(message)
        try:
            async with asyncio.timeout(limit_s):
                await self._socket.send_str(encoded)
                reply = await self._socket.receive()
        except TimeoutError:
            await self._lose(f"no answer to {what[:40]} within {limit_s:g} s")
        except (aiohttp.ClientError, ConnectionError) as error:
            await self._lose(f"the connection broke off: {error}")
        except BaseException:
            await self._drop(f"{what[:40]} was broken off")
            raise
        if reply.type is aiohttp.WSMsgType.BINARY:
            await self._lose(f"it answered {what[:40]} with bytes, not with text")
        if reply.type is not aiohttp.WSMsgType.TEXT:
            told = f": {reply.data}" if reply.type is aiohttp.WSMsgType.ERROR else ""
            await self._lose(f"the connection was closed before {what[:40]} was answered{told}"[:300])
        try:
            return wire.decode(reply.data)
        except DataError as error:
            await self._lose(f"its reply to {what[:40]} is of no use: {error}")

    async def _read(self, kind: str, data: dict[str, Any]) -> StepResult:
        if kind == "error":
            await self._lose(_said(data))
        if kind != "observation":
            await self._lose(f"it answered with {kind[:40]!r} where an observation was due")
        try:
            # Decoding an image takes as long as a hundred messages.
            due, limits = self._round + 1, self.settings.limits
            seen = await asyncio.to_thread(read_observation, data, due, limits)
            self._round = seen.round
            return seen
        except DataError as error:
            await self._lose(str(error))
        except BaseException:
            await self._drop("reading a reply was broken off")
            raise

    async def _lose(self, reason: str) -> NoReturn:
        await self._drop(reason)
        raise EnvironmentLost(self._lost) from None

    async def _drop(self, reason: str) -> None:
        """Cut the connection; whatever comes later raises with the first reason."""
        self._lost = self._lost or f"{self.address}: {reason}"
        http, self._http, self._socket = self._http, None, None
        if http is not None:
            await asyncio.shield(http.close())


def base_url(url: str) -> URL:
    """Return a server's address without a slash at its end.

    Raises:
        ConfigError: It is no address, or holds a password: keys are given apart, since addresses are printed.
    """
    return URL(checked_address(url, "http://127.0.0.1:8000", "as `key`"))


def _said(data: Mapping[str, Any]) -> str:
    return f"{str(data.get('message', 'no reason given'))[:500]} ({str(data.get('code', 'no code'))[:40]})"


def _hint(status: int) -> str:
    match status:
        case 401 | 403:
            return f"; the key is missing or wrong ({KEY_VARIABLE})"
        case 404:
            return "; nothing is served below this address"
    return ""
