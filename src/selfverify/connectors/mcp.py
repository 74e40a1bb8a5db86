"""The tools of a server of the Model Context Protocol (MCP) as an environment: they are its calls.

Such a server has no tasks and scores nothing, unless it is one of ours (`connectors.server`). So a reset
begins a new session, with a process of its own where the server is a command. The official package speaks
the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.clients.openai_client import BoundedReply
from selfverify.connectors.content import ContentLimits, from_result
from selfverify.connectors.openenv import (
    RemoteSession,
    base_url,
    decode_object,
    encode,
    read_reward,
    read_tools,
)
from selfverify.core.episode import Call, StepResult
from selfverify.core.errors import ConfigError, DataError, needs

with needs("MCP's servers need more", "mcp"):
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

_AGENTS_FAULT = (-32601, -32602)
"""Codes of JSON-RPC for a tool that does not exist and for arguments that do not fit."""
_MOST_PAGES = 100


@dataclass(frozen=True, slots=True)
class McpConfig:
    """Which server, and how patient to be.

    Args:
        command: The command that starts a server on standard input and output, with its arguments.
        url: Or the address of a server over streamable HTTP, such as ``http://127.0.0.1:8000/mcp``.
        env: More environment variables for the command, which otherwise gets only those that every program
            needs.
        key: The key that is sent to ``url``; None sends none.
        begin: A tool that begins a task, as ``begin`` does on our servers: a reset calls it with ``task`` and
            ``seed``, and the agent does not see it. None begins nothing: the first observation is then empty.
        open_s: Seconds that starting and connecting may take.
        reset_s: Seconds that beginning a task may take.
        act_s: Seconds that a call may take.
        limits: Limits of the server's content; a command's images alone are bounded.
    """

    command: Sequence[str] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: str | None = field(default=None, repr=False)
    begin: str | None = None
    open_s: float = 30.0
    reset_s: float = 300.0
    act_s: float = 60.0
    limits: ContentLimits = field(default_factory=ContentLimits)


class McpToolset(RemoteSession):
    """The tools of a server as an environment.

    A result that is an error is the agent's to read. Every other failure loses the session.

    Raises:
        ConfigError: There is not exactly one of a command and an address.
    """

    def __init__(self, settings: McpConfig) -> None:
        if bool(settings.command) == bool(settings.url):
            raise ConfigError("a toolset has either a command or an address")
        super().__init__(str(base_url(settings.url)) if settings.url else settings.command[0])
        self.settings = settings
        self._client: Client | None = None
        self._serving: asyncio.Task[None] | None = None
        self._fresh = False

    async def open(self) -> None:
        """Open a session; a server that is a command is started."""
        self._check_kept()
        if self._serving is not None:
            return
        async with self._within(self.settings.open_s, "opening"):
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(ready))
            self._client = await asyncio.shield(ready)
            tools = await _listed(self._client)
            self._tools = [tool for tool in tools if tool["function"]["name"] != self.settings.begin]
        self._fresh = True

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        if not self._fresh and not self._lost:
            await self._cut()
        await self.open()
        self._fresh, self._round = False, 0
        if self.settings.begin is None:
            return StepResult(0)
        call = Call(self.settings.begin, {"task": dict(task), "seed": seed})
        shown = await self._asked(call, self.settings.reset_s)
        if shown.error:
            raise DataError(f"{self.name}: {shown.error}")
        return shown

    async def step(self, call: Call) -> StepResult:
        self._check_begun()
        self._round += 1
        if call.name == self.settings.begin:
            return StepResult(self._round, error=f"there is no tool {call.name}")
        return await self._asked(call, self.settings.act_s)

    async def _asked(self, call: Call, limit_s: float) -> StepResult:
        assert self._client is not None
        arguments = decode_object(encode(call.arguments))  # without halves of surrogate pairs
        async with self._within(limit_s, call.name[:40]):
            try:
                result = await self._client.call_tool(call.name, arguments)
            except MCPError as error:
                if error.code in _AGENTS_FAULT:
                    return StepResult(self._round, error=error.message[:2000])
                raise
        told = result.meta or {}
        shown = result.model_dump(by_alias=True, mode="json")
        async with self._within(None, call.name[:40]):
            text, images = await asyncio.to_thread(from_result, shown, self.settings.limits)
            reward = read_reward(told.get("selfverify/reward"))
        done, truncated = told.get("selfverify/done") is True, told.get("selfverify/truncated") is True
        found = StepResult(self._round, text, images, done=done, truncated=truncated, reward=reward)
        if result.is_error:
            found.text, found.error = "", text or "the tool has failed"
        return found

    async def _serve(self, ready: asyncio.Future[Client]) -> None:
        """Hold a session open until this task is cancelled: what the package opens has to be closed by the
        same task."""
        try:
            async with self._made() as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
                ready.exception()  # the caller that waited may have gone

    def _made(self) -> Client:
        settings = self.settings
        if settings.url is None:
            command, *arguments = settings.command
            return Client(StdioServerParameters(command=command, args=arguments, env=dict(settings.env)))

        async def bound(response: httpx2.Response) -> None:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            if response.headers.get("content-type", "").startswith("application/json"):
                response.stream = BoundedReply(response.stream, settings.limits.message_bytes)

        http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {settings.key}"} if settings.key else {},
            timeout=httpx2.Timeout(settings.open_s, read=max(settings.act_s, settings.reset_s)),
            event_hooks={"response": [bound]},
        )
        return Client(streamable_http_client(settings.url, http_client=http))

    async def _cut(self) -> None:
        serving, self._serving, self._client = self._serving, None, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})


async def _listed(client: Client) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [tool.model_dump(by_alias=True, mode="json") for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            return read_tools(tools)
    raise DataError(f"its list of tools has more than {_MOST_PAGES} pages")
