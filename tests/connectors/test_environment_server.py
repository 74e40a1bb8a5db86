"""The server by itself: limits, who is let in, lost sessions, and the Model Context Protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from environment_servers import serve, with_server
from selfverify.connectors.content import ContentLimits
from selfverify.connectors.server import (
    Endpoint,
    EnvironmentServer,
    Keys,
    Session,
    SessionLimits,
    address_of,
    open_port,
    read_keys,
    start_server,
    stop_asked,
)
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError
from tiny_environment import Counter

RESET = {"type": "reset", "data": {"goal": 9, "seed": 1}}
HANG = {"type": "step", "data": {"type": "call_tool", "tool_name": "fail", "arguments": {"how": "hang"}}}


def talk(
    *messages: Any, limits: SessionLimits | None = None, wait: bool = True, closes: bool = True
) -> list[dict[str, Any]]:
    """The replies to raw messages on one socket; the last is ``closed`` where the server closes it."""
    patience_s = 20.0 if closes else 0.3

    async def use(url: str, server: EnvironmentServer) -> list[dict[str, Any]]:
        got: list[dict[str, Any]] = []
        async with aiohttp.ClientSession() as http, http.ws_connect(url + "/ws") as socket:
            for message in messages:
                await socket.send_str(message if isinstance(message, str) else json.dumps(message))
                if wait:
                    got.append(await socket.receive_json(timeout=20))
            try:
                while (message := await socket.receive(timeout=patience_s)).type is aiohttp.WSMsgType.TEXT:
                    got.append(json.loads(message.data))
            except TimeoutError:
                return got
        return [*got, {"type": "closed", "data": {}}]

    return with_server(use, limits)  # type: ignore[no-any-return]


def codes(replies: list[dict[str, Any]]) -> list[Any]:
    return [reply["data"].get("code", reply["type"]) for reply in replies]


def test_garbage_is_answered_and_the_session_goes_on() -> None:
    step = {"type": "step", "data": {"number": 1}}
    early = {"type": "step", "data": {"type": "call_tool", "tool_name": "add"}}
    tools = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}
    replies = talk(
        "{", {"type": "dance"}, step, early, {"type": "reset", "data": {}}, RESET, {"type": "state"}, tools,
        closes=False,
    )  # fmt: skip
    wrong = ["INVALID_JSON", "UNKNOWN_TYPE", *["VALIDATION_ERROR"] * 3]
    assert codes(replies) == [*wrong, "observation", "state", "mcp"]
    assert replies[-2]["data"] == {"count": 1} and len(replies[-1]["data"]["result"]["tools"]) == 2


def test_silence_and_slowness_end_a_session() -> None:
    [_, last, closed] = talk(RESET, limits=SessionLimits(idle_s=0.5))
    assert last["data"] == {"message": "nothing was asked for 0.5 s", "code": "SESSION_ERROR"}
    [_, last, ended] = talk(RESET, HANG, limits=SessionLimits(busy_s=0.5))
    assert last["data"] == {"message": "fail took longer than 0.5 s", "code": "SESSION_ERROR"}
    assert closed["type"] == ended["type"] == "closed"


def test_who_speaks_out_of_turn_or_too_much_is_cut_off() -> None:
    assert codes(talk(RESET, HANG, RESET, wait=False)) == ["closed"]
    limits = SessionLimits(content=ContentLimits(message_bytes=1000))
    large = {"type": "reset", "data": {"x": "y" * 2000}}
    assert codes(talk(large, limits=limits, wait=False)) == ["closed"]


def test_an_environment_that_does_not_close_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Counter):
        async def close(self) -> None:
            await super().close()
            await asyncio.sleep(60)

    async def main() -> None:
        table = Endpoint("stuck", Stuck, SessionLimits(close_s=0.1))
        session = table.open()
        await session.reset({"goal": 1}, 0)
        await table.close(session)
        await table.close(session)
        assert len(table) == 0 and session.lost

    asyncio.run(main())
    assert "stuck: an environment could not be closed: it takes longer than 0.1 s" in caplog.text


def test_one_session_does_one_thing_at_a_time() -> None:
    async def main() -> None:
        session = Session(Counter(delay_s=0.01), SessionLimits())
        await session.reset({"goal": 100}, 0)
        calls = (session.act(Call("add", {"number": 1})) for _ in range(5))
        shown = await asyncio.gather(*calls)
        assert [(s.round, s.text) for s in shown] == [(n, f"{n} of 100") for n in range(1, 6)]
        await session.environment.close()

    asyncio.run(main())


def test_several_environments_stand_below_their_names_and_strangers_are_not_let_in() -> None:
    async def use(url: str, _: Any) -> None:
        right = {"Authorization": "Bearer right"}
        async with aiohttp.ClientSession() as http:
            for path, headers, status in (
                ("/health", {}, 200),
                ("/one/ws", {}, 401),
                ("/one/ws", right, 400),  # let in, and no socket
                ("/two-b/ws", right, 400),
                ("/ws", right, 404),
                ("/health", {"Origin": url}, 403),
                ("/one/ws", right | {"Origin": "http://evil.example"}, 403),
            ):
                async with http.get(url + path, headers=headers) as reply:
                    assert reply.status == status, path

    with_server(use, keys=["right"], one=Counter, **{"two-b": Counter})


def test_a_server_for_other_machines_needs_keys() -> None:
    async def start(host: str, keys: list[str]) -> int:
        async with AsyncExitStack() as stack:
            return await start_server(EnvironmentServer({"a": Counter}, keys=Keys(keys)), stack, host)

    with pytest.raises(ConfigError, match="SELFVERIFY_ENVIRONMENT_KEYS"):
        asyncio.run(start("0.0.0.0", []))
    assert asyncio.run(start("0.0.0.0", ["key"])) > 0
    for names in ({}, {"a/b": Counter}, {"": Counter}):
        with pytest.raises(ConfigError, match="names of letters"):
            EnvironmentServer(names)


def test_shutting_down_ends_sessions_in_the_middle_of_a_call() -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:
            _, url = await serve(stack)
            socket = await stack.enter_async_context(http.ws_connect(url + "/ws"))
            await socket.send_json(RESET)
            await socket.receive_json()
            await socket.send_json(HANG)
            await asyncio.sleep(0.05)
            assert len(Counter.opened) == 1
        assert Counter.opened == []

    asyncio.run(asyncio.wait_for(main(), 5))


class Rpc:
    """Asks ``/mcp``; keeps the session that it is given."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http, self.url, self.headers, self.status = http, url, dict[str, str](), 0

    async def __call__(self, method: str, notify: bool = False, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if notify else {"id": 3})
        async with self.http.post(self.url, json=request, headers=self.headers) as reply:
            self.status = reply.status
            if session := reply.headers.get("Mcp-Session-Id"):
                self.headers["Mcp-Session-Id"] = session
            return await reply.json() if reply.content_type == "application/json" else None


def with_rpc(
    use: Callable[[Rpc, EnvironmentServer], Awaitable[Any]],
    query: str = "",
    limits: SessionLimits | None = None,
) -> Any:
    async def main(url: str, server: EnvironmentServer) -> Any:
        async with aiohttp.ClientSession() as http:
            return await use(Rpc(http, f"{url}/counter/mcp{query}"), server)

    return with_server(main, limits)


def test_mcp_over_http() -> None:
    async def use(ask: Rpc, server: EnvironmentServer) -> None:
        welcome = (await ask("initialize", protocolVersion="2025-06-18"))["result"]
        assert welcome["protocolVersion"] == "2025-06-18" and "begin" in welcome["instructions"]
        assert await ask("notifications/initialized", notify=True) is None and ask.status == 202
        tools = (await ask("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["begin", "add", "fail"]
        early = (await ask("tools/call", name="add", arguments={"number": 2}))["result"]
        assert early["isError"] and "call begin first" in early["content"][0]["text"]
        wrong = await ask("tools/call", name="begin", arguments={"task": {}})
        assert wrong["error"] == {"code": -32602, "message": "task: goal is no number"}
        await ask("tools/call", name="begin", arguments={"task": {"goal": 3}, "seed": 1})
        again = (await ask("tools/call", name="begin", arguments={"task": {"goal": 3}}))["result"]
        assert again["isError"]
        done = (await ask("tools/call", name="add", arguments={"number": 2}))["result"]
        assert done["content"][0]["text"] == "3 of 3" and not done["isError"]
        meta = {"round": 1, "reward": 2.0, "done": True, "truncated": False}
        assert done["_meta"] == {f"selfverify/{name}": value for name, value in meta.items()}
        assert (await ask("ping"))["result"] == {}
        assert (await ask("resources/list"))["error"]["code"] == -32601
        await ask("tools/call", name="fail", arguments={"how": "lose"})
        assert "error" in await ask("tools/list") and ask.status == 404
        assert len(server.endpoints["counter"]) == 0

    with_rpc(use)


def test_the_task_can_stand_in_the_address() -> None:
    async def use(ask: Rpc, _: Any) -> str:
        await ask("initialize")
        tools = (await ask("tools/list"))["result"]["tools"]
        assert tools[0]["inputSchema"]["properties"] == {}
        text = (await ask("tools/call", name="begin"))["result"]["content"][0]["text"]
        async with ask.http.delete(ask.url, headers=ask.headers) as reply:
            assert reply.status == 204
        async with ask.http.delete(ask.url, headers=ask.headers) as reply:
            assert reply.status == 404
        return str(text)

    assert with_rpc(use, '?task={"goal":7}&seed=4') == "4 of 7"

    async def wrong(ask: Rpc, _: Any) -> Any:
        return await ask("initialize"), ask.status

    for query in ("?task=7", "?task={}&seed=a"):
        reply, status = with_rpc(wrong, query)
        assert status == 200 and reply["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["initialize", "openenv/session/create"])
def test_sessions_over_http_are_bounded_and_closed_when_idle(method: str) -> None:
    async def use(ask: Rpc, server: EnvironmentServer) -> None:
        session = (await ask(method))["result"].get("session_id", "")
        full = await Rpc(ask.http, ask.url)(method)
        assert "all 1 sessions" in full["error"]["message"]
        async with asyncio.timeout(20):
            while len(server.endpoints["counter"]):
                await asyncio.sleep(0.02)
        gone = await ask("tools/list", session_id=session)
        assert "there is no" in gone["error"]["message"] and ask.status == (200 if session else 404)

    with_rpc(use, limits=SessionLimits(sessions=1, idle_s=0.5))


def test_a_session_of_openenv_over_http_and_a_socket() -> None:
    """The socket resets it and both act in it; it outlives the socket, and ends when it is closed or lost."""

    def said(reply: dict[str, Any]) -> str:
        return str(reply["result"]["content"][0]["text"])

    async def use(ask: Rpc, server: EnvironmentServer) -> None:
        sessions = server.endpoints["counter"]
        mine, other = [(await ask("openenv/session/create"))["result"]["session_id"] for _ in range(2)]
        assert mine != other and len(sessions) == 2 and not ask.headers
        listed = (await ask("tools/list", session_id=mine))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["add", "fail"]
        add: dict[str, Any] = {"name": "add", "arguments": {"number": 2}}
        early = await ask("tools/call", **add, session_id=mine)
        assert early["error"] == {
            "code": -32602,
            "message": "there is no task yet: reset comes before the first call",
        }
        address = ask.url.replace("/mcp", "/ws")
        async with ask.http.ws_connect(address, params={"session_id": mine}) as socket:
            await socket.send_json(RESET)
            assert (await socket.receive_json())["data"]["observation"]["metadata"]["round"] == 0
            both = asyncio.gather(*(ask("tools/call", **add, session_id=mine) for _ in range(2)))
            await socket.send_json(
                {
                    "type": "step",
                    "data": {"type": "call_tool", "tool_name": "add", "arguments": {"number": 1}},
                }
            )
            assert (await socket.receive_json())["data"]["observation"]["metadata"]["round"] in (1, 2, 3)
            assert sorted(said(reply) for reply in await both)[-1] in ("5 of 9", "6 of 9")
            strangers = [{"session_id": mine}, {"session_id": "guess"}, {"session_id": ""}]
            await ask("initialize")
            strangers.append({"session_id": ask.headers.pop("Mcp-Session-Id")})
            for stranger in strangers:  # reset nothing
                async with ask.http.ws_connect(address, params=stranger) as second:
                    assert (await second.receive_json())["data"]["code"] == "SESSION_ERROR"
                    assert (await second.receive()).type is aiohttp.WSMsgType.CLOSE
        assert said(await ask("tools/call", **add, session_id=mine)) == "8 of 9"
        async with ask.http.ws_connect(address, params={"session_id": mine}) as socket:
            own = {"jsonrpc": "2.0", "id": "x", "method": "openenv/session/create"}
            await socket.send_json({"type": "mcp", "data": own})
            assert (await socket.receive_json())["data"]["result"] == {"session_id": mine}
            closed = {"jsonrpc": "2.0", "id": 3, "result": {"session_id": mine, "closed": True}}
            assert await ask("openenv/session/close", session_id=mine) == closed
            assert (await socket.receive_json())["data"] == {
                "message": "the session is closed",
                "code": "SESSION_ERROR",
            }
        for method in ("openenv/session/close", "tools/call", "tools/list"):
            for id in (mine, None, 7, ["a"]):
                wrong = await ask(method, session_id=id)
                assert (
                    wrong["error"]["code"] == -32602 and "openenv/session/create" in wrong["error"]["message"]
                )
        assert len(sessions) == 2
        async with ask.http.ws_connect(address, params={"session_id": other}) as socket:
            await socket.send_json(RESET)
            await socket.receive_json()
            await socket.send_json(HANG)
            await asyncio.sleep(0.05)
        async with asyncio.timeout(20):  # its environment was in the middle of a call
            while len(sessions) > 1:
                await asyncio.sleep(0.02)
        assert (await ask("tools/list", session_id=other))["error"]["code"] == -32602
        many = await asyncio.gather(*(ask("openenv/session/create") for _ in range(200)))
        assert (
            len(sessions) == 64 and sum("all 64 sessions are in use" in str(reply) for reply in many) == 137
        )

    with_rpc(use)


@pytest.mark.parametrize(
    ("request_", "id", "code"),
    [
        *(
            (body, None, -32700)
            for body in ("", "{", "7", "[1]", [{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
        ),
        *(({"jsonrpc": "2.0", "id": id, "method": "dance"}, id, -32601) for id in ("a", 1, 1.5, None, "")),
        *(({"jsonrpc": "2.0", "id": id, "method": "ping"}, None, -32600) for id in ([], {}, True)),
        *(
            ({"jsonrpc": "2.0", "method": method}, None, -32600)
            for method in ("ping", "tools/call", "initialize", "openenv/session/create")
        ),
        ({"id": 1}, None, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, None, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": ["ping"]}, None, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, None, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}, 1, -32602),
    ],
)
def test_requests_that_are_none(request_: Any, id: Any, code: int) -> None:
    async def use(ask: Rpc, server: EnvironmentServer) -> None:
        body = request_ if isinstance(request_, str) else json.dumps(request_)
        async with ask.http.post(ask.url, data=body) as reply:
            said = await reply.json()
        assert (said["id"], said["error"]["code"]) == (id, code)
        assert len(server.endpoints["counter"]) == 0  # no session was made that has no name

    with_rpc(use)


def test_an_environment_that_cannot_be_made_is_said() -> None:
    def none() -> Counter:
        raise OSError("no display")

    async def use(url: str, server: EnvironmentServer) -> None:
        said = "none: no environment can be made: OSError; the server's log says more"
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(url + "/ws") as socket:
                reply = await socket.receive_json(timeout=20)
                assert reply["data"] == {"message": said, "code": "SESSION_ERROR"}
            ask = Rpc(http, f"{url}/mcp")
            assert (await ask("initialize"))["error"] == {"code": -32000, "message": said}
        assert len(server.endpoints["none"]) == 0

    with_server(use, none=none)


# --- ports, being told to stop, and bearer keys


def test_a_free_port_is_found_and_a_taken_one_is_named() -> None:
    async def use() -> None:
        async with AsyncExitStack() as stack:
            port = await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", 0)
            assert port > 0
            with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} cannot be opened"):
                await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", port)
        async with AsyncExitStack() as stack:  # closing the stack has freed it
            assert await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", port) == port

    asyncio.run(use())


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio hears of no signals there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_hears_that_it_is_to_stop(number: signal.Signals) -> None:
    async def use() -> bool:
        stop = stop_asked()
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            return await stop.wait()

    assert asyncio.run(use())


def test_keys_and_addresses(tmp_path: Path) -> None:
    keys = Keys(["one", "two"])
    assert all(map(keys.admit, ("Bearer one", "Bearer two", "bearer  two ")))
    for wrong in (None, "", "two", "Bearer", "Bearer ", "Bearer three", "Basic two", "Bearer tw\udcff"):
        assert not keys.admit(wrong)
    assert not Keys([]) and Keys([]).admit(None)
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\n two \n")
    assert read_keys(path) == ["one", "two"]
    path.write_text("# none\n")
    for unread in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_keys(unread)
    assert address_of("127.0.0.1", 1) == "http://127.0.0.1:1" and address_of("::1", 2) == "http://[::1]:2"
