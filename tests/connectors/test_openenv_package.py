"""OpenEnv's own clients work on our server, and our client on its server.

They are skipped where the package is missing. It can stand in no environment with ours, for it wants an older
``mcp``; `make openenv` runs them in one of its own.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from PIL import Image

from environment_servers import opened, with_server
from selfverify.connectors.server import SessionLimits
from selfverify.core.episode import Call

core = pytest.importorskip("openenv.core")
uvicorn = pytest.importorskip("uvicorn")


def stock(use: Any, limits: SessionLimits | None = None) -> Any:
    """What ``use`` returns for our server's address."""

    async def main(url: str, _: Any) -> Any:
        return await use(url)

    return with_server(main, limits)


def test_the_generic_client() -> None:
    async def use(url: str) -> None:
        async with core.GenericEnvClient(base_url=url) as client:
            first = await client.reset(goal=5, seed=1)
            assert first.done is False and first.reward is None
            assert first.observation["result"]["content"][0] == {"type": "text", "text": "1 of 5"}
            call = {"type": "call_tool", "tool_name": "add", "arguments": {"number": 2}}
            shown = await client.step(call)
            assert shown.reward == 2.0 and shown.observation["metadata"]["round"] == 1
            [_, block] = shown.observation["result"]["content"]
            assert Image.open(io.BytesIO(base64.b64decode(block["data"]))).size == (13, 8)
            refused = await client.step({**call, "tool_name": "dance"})
            assert refused.observation["error"]["message"] == "there is no dance like that"
            assert (await client.step({"type": "list_tools"})).observation["tools"][0]["name"] == "add"
            assert await client.state() == {"count": 3}
            over = await client.step({**call, "arguments": {"number": 9}})
            assert over.done is True and over.observation["metadata"]["truncated"] is True
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                await client.reset()
            assert (await client.reset(goal=3)).observation["metadata"]["round"] == 0

    stock(use)


def test_the_client_of_tools() -> None:
    """One session over HTTP and a socket; a second client has its own; without room it is said."""
    mcp_client = pytest.importorskip("openenv.core.mcp_client")
    types = pytest.importorskip("openenv.core.env_server.mcp_types")

    async def use(url: str) -> None:
        async with mcp_client.MCPToolClient(base_url=url) as client:
            tools = await client.list_tools()
            assert [tool.name for tool in tools] == ["add", "fail"]
            assert tools[0].input_schema["required"] == ["number"]
            await client.reset(goal=5)
            shown = await client.step(types.CallToolAction(tool_name="add", arguments={"number": 5}))
            assert shown.done and shown.reward == 5.0 and shown.observation.tool_name == "add"
            said = await client.call_tool("add", number=1)
            assert said["content"][0]["text"] == "6 of 5"
            await client.disconnect()  # its session goes on
            assert (await client.call_tool("add", number=1))["content"][0]["text"] == "7 of 5"
            async with mcp_client.MCPToolClient(base_url=url) as other:
                with pytest.raises(RuntimeError, match="reset comes before the first call"):
                    await other.call_tool("add", number=1)
                with pytest.raises(RuntimeError, match="all 2 sessions are in use"):
                    await mcp_client.MCPToolClient(base_url=url).connect()
            assert (await client.reset(goal=9)).observation.result["content"][0]["text"] == "0 of 9"

    stock(use, SessionLimits(sessions=2))


class Served:
    """One of OpenEnv's own servers on a thread."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.02)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


def test_our_client_on_its_server_of_tools() -> None:
    fastmcp = pytest.importorskip("fastmcp")
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import Observation, State

    tools = fastmcp.FastMCP("drawing")

    @tools.tool
    def square(size: int) -> Any:
        """Draw a square."""
        file = io.BytesIO()
        Image.new("RGB", (size, size)).save(file, "PNG")
        return fastmcp.utilities.types.Image(data=file.getvalue(), format="png")

    @tools.tool
    def broken() -> str:
        """Fail."""
        raise ValueError("no paper")

    class Drawing(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(tools)

        def reset(self, seed: int | None = None, paper: str = "", **_: Any) -> Any:
            return Observation(done=False, metadata={"paper": paper, "seed": seed})

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            raise ValueError("only tools here")

        @property
        def state(self) -> Any:
            return State(episode_id="e", step_count=0)

    async def use(url: str) -> None:
        async with AsyncExitStack() as stack:
            client = await opened(stack, url)
            first = await client.reset({"paper": "white"}, seed=3)
            assert first.info == {"paper": "white", "seed": 3}
            assert [tool["function"]["name"] for tool in client.tools] == ["square", "broken"]
            shown = await client.step(Call("square", {"size": 7}))
            assert shown.images[0].size == (7, 7) and shown.round == 1 and not shown.error
            for call, why in (
                (Call("broken"), "no paper"),
                (Call("dance"), "dance"),
                (Call("square", {"size": "big"}), "size"),
            ):
                assert why in (await client.step(call)).error
            assert (await client.step(Call("square", {"size": 2}))).images[0].size == (2, 2)
            assert (await client.state() or {})["episode_id"] == "e"

    with Served(create_app(Drawing, CallToolAction, CallToolObservation, env_name="drawing")) as url:
        asyncio.run(use(url))


def test_our_client_on_its_server_of_plain_actions() -> None:
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):
        word: str

    class Heard(Observation):
        heard: str

    class Echo(Environment[Say, Heard, State]):  # type: ignore[misc]
        def reset(self, seed: int | None = None, **_: Any) -> Heard:
            return Heard(heard="nothing")

        def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
            if action.word == "crash":
                raise ValueError("it broke")
            return Heard(heard=action.word, reward=1, done=action.word == "bye")

        @property
        def state(self) -> State:
            return State(step_count=2)

    async def use(url: str) -> None:
        async with AsyncExitStack() as stack:
            wrong = await opened(stack, url)
            with pytest.raises(Exception, match="actions='plain'"):
                await wrong.open()
            client = await opened(stack, url, actions="plain")
            assert (await client.reset({}, seed=0)).text == '{"heard":"nothing"}'
            [tool] = client.tools
            assert tool["function"]["name"] == "step"
            assert list(tool["function"]["parameters"]["properties"]) == ["word"]
            refused = await client.step(Call("step", {"wort": "hi"}))
            assert refused.round == 0 and "VALIDATION_ERROR" in refused.error
            shown = await client.step(Call("step", {"word": "bye"}))
            assert (shown.round, shown.text, shown.reward, shown.done) == (1, '{"heard":"bye"}', 1.0, True)
            with pytest.raises(Exception, match="it broke"):
                await client.step(Call("step", {"word": "crash"}))

    with Served(create_app(Echo, Say, Heard, env_name="echo")) as url:
        asyncio.run(use(url))
