"""The tools of a server of the Model Context Protocol (MCP) as an environment: they are its calls.

Such a server has no tasks and scores nothing, unless it is one of ours (`connectors.server`). So a reset
begins a new session, with a process of its own where the server is a command. The official package speaks
the protocol.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from selfverify.connectors.openenv import ContentLimits, base_url, from_blocks, read_reward, read_tools
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError

try:
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client
except ImportError as error:
    raise ConfigError(f"MCP's servers need more: pip install 'selfverify[mcp]' ({error})") from None

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
        limits: What is accepted from the server; of one that is a command, images are bounded.
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


class McpToolset(Environment):
    """The tools of a server as an environment.

    A result that is an error is the agent's to read. Whatever else fails loses the session.

    Raises:
        ConfigError: There is not exactly one of a command and an address.
    """

    def __init__(self, settings: McpConfig) -> None:
        if bool(settings.command) == bool(settings.url):
            raise ConfigError("a toolset has either a command or an address")
        self.settings = settings
        self.name = str(base_url(settings.url)) if settings.url else settings.command[0]
        self._tools: list[dict[str, Any]] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._calls: asyncio.Queue[tuple[Call, float, asyncio.Future[Any]]] = asyncio.Queue()
        self._round, self._lost, self._fresh = -1, "", False

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`; they are known once `open` has asked the server."""
        if self._tools is None:
            raise DataError(f"{self.name}: its tools are known after open() or reset()")
        return self._tools

    async def open(self) -> None:
        """Start the server or connect, and ask for the tools; does nothing on an open session.

        Raises:
            EnvironmentLost: It does not start, cannot be reached, or is no server of this protocol.
        """
        if self._lost:
            raise EnvironmentLost(self._lost)
        if self._serving is not None:
            return
        ready: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        # What the package opens has to be closed by the same task.
        self._serving = asyncio.create_task(self._serve(ready))
        try:
            async with asyncio.timeout(self.settings.open_s):
                self._tools = await asyncio.shield(ready)
        except TimeoutError:
            await self._lose(f"no session within {self.settings.open_s:g} s")
        except EnvironmentLost as error:
            await self._lose(str(error))
        except BaseException:
            await self._drop("opening was broken off")
            raise
        self._fresh = True

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`."""
        if not self._fresh and not self._lost:
            await self._end()
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
        """See `Environment`."""
        if self._round < 0 and not self._lost:
            raise DataError(f"{self.name}: reset comes before the first call")
        self._round += 1
        if call.name == self.settings.begin:
            return StepResult(self._round, error=f"there is no tool {call.name}")
        return await self._asked(call, self.settings.act_s)

    async def close(self) -> None:
        """See `Environment`."""
        await self._drop("the session is closed")

    async def _asked(self, call: Call, limit_s: float) -> StepResult:
        if self._lost:
            raise EnvironmentLost(self._lost)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((call, limit_s, future))
        assert self._serving is not None
        try:
            async with asyncio.timeout(limit_s + 1):
                await asyncio.wait({future, self._serving}, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                await self._lose("the session has ended")
            return await self._read(future.result())
        except MCPError as error:
            if error.code in _AGENTS_FAULT:
                return StepResult(self._round, error=error.message[:2000])
            await self._lose(f"{call.name[:40]} failed: {error.message[:500]}")
        except TimeoutError:
            await self._lose(f"no answer to {call.name[:40]} within {limit_s:g} s")
        except (EnvironmentLost, DataError):
            raise
        except Exception as error:
            await self._lose(f"{call.name[:40]} failed: {_cause(error)}")
        except BaseException:
            await self._drop(f"{call.name[:40]} was broken off")
            raise

    async def _read(self, result: Any) -> StepResult:
        told = {k.removeprefix("selfverify/"): v for k, v in (result.meta or {}).items()}
        blocks = [block.model_dump(by_alias=True, mode="json") for block in result.content]
        try:
            text, images = await asyncio.to_thread(from_blocks, blocks, self.settings.limits)
            reward = read_reward(told.get("reward"))
        except DataError as error:
            await self._lose(str(error))
        found = StepResult(
            self._round,
            text,
            images,
            done=told.get("done") is True,
            truncated=told.get("truncated") is True,
            reward=reward,
        )
        if result.is_error:
            found.text, found.error = "", text or "the tool has failed"
        return found

    async def _serve(self, ready: asyncio.Future[list[dict[str, Any]]]) -> None:
        """Hold a session open and carry out call after call."""
        try:
            async with self._client() as client:
                tools = await _listed(client)
                hidden = self.settings.begin
                ready.set_result([tool for tool in tools if tool["function"]["name"] != hidden])
                while True:
                    call, limit_s, future = await self._calls.get()
                    try:
                        found = await client.call_tool(call.name, dict(call.arguments), limit_s)
                    except Exception as error:
                        if not future.done():
                            future.set_exception(error)
                    else:
                        if not future.done():
                            future.set_result(found)
        except Exception as error:
            if not ready.done():
                ready.set_exception(EnvironmentLost(f"no session: {_cause(error)}"))
                ready.exception()  # whoever waited may have gone

    def _client(self) -> Client:
        settings = self.settings
        if settings.url is None:
            command, *arguments = settings.command
            return Client(StdioServerParameters(command=command, args=arguments, env=dict(settings.env)))
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(settings.open_s, read=max(settings.act_s, settings.reset_s)),
            transport=_Bounded(settings.limits.message_bytes),
        )
        return Client(streamable_http_client(settings.url, http_client=http))

    async def _end(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})

    async def _lose(self, reason: str) -> NoReturn:
        await self._drop(reason)
        raise EnvironmentLost(self._lost) from None

    async def _drop(self, reason: str) -> None:
        self._lost = self._lost or f"{self.name}: {reason}"
        await self._end()


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


def _cause(error: BaseException) -> str:
    """What a group of errors is about: its first error."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]


class _Bounded(httpx2.AsyncBaseTransport):
    """Cuts replies off that are too large, which the package would read whole."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-type", "").startswith("application/json"):
            response.stream = _BoundedStream(response.stream, self.most)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self.inner, self.most = inner, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self.inner:
            size += len(part)
            if size > self.most:
                raise httpx2.ReadError(f"a reply of more than {self.most:,} bytes")
            yield part

    async def aclose(self) -> None:
        with suppress(Exception):
            await self.inner.aclose()


T = TypeVar("T")


class OwnThread:
    """Does one thing after another on a thread that does not keep the process from ending.

    It is for an object that blocks and may be used on one thread only, such as a simulator or a browser.

    A thread cannot be stopped. What takes too long goes on behind the scenes, and the thread is left to it:
    it ends when that is done.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Do something after all that was started before; the future has what it returns."""
        future: Future[T] = Future()
        self._work.put((future, function))
        return future

    async def do(self, function: Callable[[], T], limit_s: float) -> T:
        """Do something and wait for it.

        Raises:
            TimeoutError: It takes longer than ``limit_s``.
        """
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(self.start(function))

    def end(self) -> None:
        """End the thread after what was started before."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                with suppress(Exception):
                    future.set_exception(error)
            else:
                future.set_result(result)
