"""g15: what goes to devices, environments and judges: adb, OpenEnv and MCP byte for byte, and the prompts."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from PIL import Image

from goldens.tree import CASES, Tree

SESSION = re.compile(r'"(session_id|episode_id|started_at|timestamp)": ?"[^"]*"')


def run(tree: Tree) -> None:
    """Store all of them."""
    prompts(tree)
    judged(tree)
    adb(tree)
    asyncio.run(openenv(tree))


def prompts(tree: Tree) -> None:
    """Store what agents and judges are told, in all variants, and the tools that they are shown."""
    agent, judge = (
        tree.get(f"selfverify.agents.prompting:{name}") for name in ("agent_prompt", "judge_prompt")
    )
    hints = tree.get("selfverify.agents.prompting:hint_names")()
    worlds = ("phone", "browser", "tools")
    for source, react, first, world in itertools.product(
        ("chosen", "all"), (True, False), ("asked", "given"), worlds
    ):
        told = agent(source, react, first, world=world)
        tree.row(f"agent {source} {react} {first} {world}", lines=told.split("\n"))
    for world in worlds:
        tree.row(f"judge {world}", lines=judge(hints, world).split("\n"))
    tree.row("agent with hints", lines=agent(hints=hints).split("\n"))


def judged(tree: Tree) -> None:
    """Store what a served model is asked as judge, and its votes."""
    servers: Any = tree.get("serving_servers")
    opinion = (
        "<Reasoning>Round 1 shows it.</Reasoning>\n<ValidEvidence>True</ValidEvidence>\n<Verdict>{}</Verdict>"
    )
    verdicts = itertools.cycle(("SUCCESS", "FAILURE", "PERHAPS"))
    observation = tree.get("selfverify.core.environment:Observation")
    call, exhibit = (
        tree.get("selfverify.core.environment:Call"),
        tree.get("selfverify.agents.exhibits:Exhibit"),
    )
    seen = [observation(n, f"Alarm 7:3{n} ``` </Round>", [Image.new("RGB", (8, 8), n)]) for n in (1, 2)]
    submission = tree.get("selfverify.agents.exhibits:Submission")(
        "Done: 7:30.", [exhibit(call("tap", {"id": "ALARM"}), one) for one in seen]
    )
    case = tree.get("selfverify.agents.cases:Case")("phone/1", "Set an alarm.", submission, 3)
    prompt = tree.get("selfverify.agents.prompting:judge_prompt")()
    loop, fake = servers.Loop(), servers.FakeUpstream(write=lambda body, i: opinion.format(next(verdicts)))
    try:
        for images in (True, False):
            config = tree.get("selfverify.agents.judges.judge_settings:ModelJudgeConfig")(
                url=loop.upstream(fake), model="m", tries=1, seed=7, images=images
            )
            judge = tree.get("selfverify.agents.judges.model_judge:ModelJudge")(config, prompt)
            for number in range(3):
                [ballot] = judge.ask(case, [number])()
                tree.row(
                    f"vote {images} {number}", vote=ballot.vote, missing=ballot.missing, number=ballot.number
                )
    finally:
        loop.close()
    for number, body in enumerate(fake.seen):
        tree.row(f"asked of the judge {number}", body=body)


def adb(tree: Tree) -> None:
    """Store every request that the adb server gets in a session on the fake phone, and what is shown."""
    phones = tree.get("agents.android.phones")
    for address, keyboard in itertools.product(("bounds", "ids"), ("adbkeyboard", "input")):
        phone = phones.Phone()
        with tree.get("agents.android.fake_adb:adb_server")({"emulator-5554": phone}) as server:
            settings = {
                "serial": "emulator-5554", "server": server.address, "reset": {"how": "clear"},
                "settle_pause": 0.0, "settle_seconds": 0.0, "observations": "both", "address": address,
                "keyboard": keyboard, "first_screen": "given",
            }  # fmt: skip
            name = "selfverify.agents.android.android_settings:AndroidConfig"
            config = tree.get(name).model_validate(tree.options("task", settings))
            environment = tree.get("selfverify.agents.android.android_environment:AndroidEnvironment")(config)
            shown = asyncio.run(session(tree, environment))
        row = f"adb {address} {keyboard}"
        tree.row(f"{row} requests", requests=server.requests)
        tree.row(f"{row} commands", commands=phone.commands)
        tree.row(f"{row} shown", shown=shown, tools=environment.tools)


async def session(tree: Tree, environment: Any) -> list[Any]:
    """Return what an environment shows of the calls."""
    call = tree.get("selfverify.core.environment:Call")
    try:
        shown = [await environment.reset(CASES["device"], 7)]
        for name, arguments in CASES["adb"]:
            shown.append(await tree.attr(environment, "act")(call(name, arguments)))
    finally:
        await environment.close()
    return shown


async def openenv(tree: Tree) -> None:
    """Store what our server answers on OpenEnv's socket and over MCP, and what our client sends."""
    helpers = tree.get("environment_servers")
    async with AsyncExitStack() as stack:
        _, url = await helpers.serve(stack)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with http.ws_connect(f"{url}/ws") as socket:
            for number, message in enumerate(CASES["openenv"]):
                await socket.send_str(message if isinstance(message, str) else json.dumps(message))
                answer = (await socket.receive(timeout=20)).data
                tree.row(f"openenv {number}", answer=unnamed(str(answer)))
        for path in ("/health", "/schema"):
            async with http.get(url + path) as reply:
                tree.row(f"openenv {path}", status=reply.status, text=unnamed(await reply.text()))
        headers = {"Accept": "application/json, text/event-stream"}
        for number, message in enumerate(CASES["mcp"]):
            body = {"jsonrpc": "2.0", "id": number, **message}
            async with http.post(f"{url}/mcp", json=body, headers=headers) as reply:
                tree.row(f"mcp {number}", status=reply.status, text=unnamed(await reply.text()))
                if name := reply.headers.get("Mcp-Session-Id"):
                    headers["Mcp-Session-Id"] = name
        sent: list[str] = []
        await client(tree, helpers, stack, sent)
        tree.row("openenv client", sent=sent)


async def client(tree: Tree, helpers: Any, stack: AsyncExitStack, sent: list[str]) -> None:
    """Let our client talk to a server that notes what it is sent."""
    shown = {"done": False, "reward": None, "observation": {"result": "ok", "tools": []}, "metadata": {}}

    async def script(socket: Any) -> None:
        async for message in socket:
            sent.append(str(message.data))
            kind = json.loads(message.data)["type"]
            if kind == "close":
                return
            data = {"count": 1} if kind == "state" else shown
            await socket.send_json({"type": "state" if kind == "state" else "observation", "data": data})

    url = await helpers.answering(stack, script)
    environment = await helpers.opened(stack, url)
    call = tree.get("selfverify.core.environment:Call")
    await environment.open()
    await environment.reset({"goal": 3, "é": [1, 2.5, None]}, seed=4)
    await tree.attr(environment, "act")(call("add", {"number": 2, "words": 'a\n"b"'}))
    await environment.state()


def unnamed(text: str) -> str:
    """Return an answer without what is drawn anew for each session."""
    return SESSION.sub(lambda found: f'"{found[1]}": ""', text)
