"""Steps of looking appear while they are made: as events of a stream, and on the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import web
from selenium.webdriver.common.by import By
from tests.serving.test_looking_gate import STEP, asked, looks_once, writing

from browser import DESKTOP, look, missing, open_browser, until
from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.config import BestOf, GatewayConfig
from selfverify.serving.local import Local
from selfverify.serving.visual import VisualGate
from selfverify.visual.config import VisualConfig
from serving_servers import CHAT, Body, FakeUpstream, Loop, quick_gateway, tagged

from .conftest import png
from .test_page_browser import HOSTILE, Page


@dataclass
class Held(FakeUpstream):
    """Says its fourth turn when it is let."""

    holds: bool = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """See `FakeUpstream`."""
        body = await request.json()
        while self.holds and len(body["messages"]) > 6:
            await asyncio.sleep(0.01)
        return await super().chat(request)


def streamed(address: str, body: Body) -> list[tuple[str, Any]]:
    """The named events of a stream, in order."""
    reply, found = requests.post(f"{address}/{CHAT}", json=body, timeout=60), []
    for block in reply.text.split("\n\n"):
        name, _, data = block.partition("\n")
        if name.startswith("event: "):
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def check(events: list[tuple[str, Any]], source: list[int]) -> None:
    """Both conversations tell of their step before their candidate comes, which names them."""
    looks = [found for name, found in events if name == "look"]
    steps = {found["conversation"]: found["look"] for found in looks}
    assert sorted(steps) == [0, 1] and all(found["of"] == 2 for found in looks)
    assert not any("error" in found for found in looks)  # clients would take it for the stream's
    assert all((step["tool"], step["images"], step["step"]) == ("crop", [2], 1) for step in steps.values())
    assert all(step["sources"][0]["of"] == source for step in steps.values())
    told = []
    for name, found in events:
        if name == "candidate":
            assert found["conversation"] in told and found["index"] in (0, 1)
        told.append(found["conversation"])
    assert [name for name, _ in events].count("candidate") == 2


def test_events_of_a_server(servers: Loop) -> None:
    address, gateway = servers.before(FakeUpstream(write=looks_once))
    gateway.looking = VisualGate(VisualConfig(tools=["crop"], max_steps=3))
    body = asked({}, stream=True, best_of={"n": 2, "progress": "events"})
    check(streamed(address, body), [112, 112])
    # Comments say nothing of steps.
    assert streamed(address, asked({}, stream=True)) == []


def test_events_of_an_own_model(servers: Loop, load_policy: Callable[..., Policy]) -> None:
    policy = load_policy()
    writing(policy, lambda text: tagged("7", "0.4") if "part of image 1" in text else STEP)
    settings = GatewayConfig(best_of=BestOf(n=2, verifier="inline"))
    gateway = Gateway(Local(policy, "m"), settings, looking=VisualGate(VisualConfig(tools=["crop"])))
    body = asked({}, stream=True, max_tokens=200, best_of={"n": 2, "progress": "events"})
    check(streamed(servers.gateway(gateway), body), [112, 112])


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_steps_appear_on_the_page(servers: Loop, tmp_path: Path) -> None:
    """Before there is an answer each step stands there with the part that it shows; then beside it."""
    photo = tmp_path / "photo.png"
    photo.write_bytes(png((320, 200)))

    def write(body: Body, number: int) -> str:
        said = len(body["messages"]) // 2
        if said == 0:
            return json.dumps(json.loads(STEP) | {"thought": HOSTILE})
        if said == 1:
            inner = {"image_index": 2, "bounding_box": [0, 0, 500, 1000]}
            return json.dumps({"thought": "", "action_name": "crop", "action": inner})
        if said == 2:
            return json.dumps({"thought": "", "action_name": HOSTILE, "action": {}})
        return tagged("9", "0.7")

    fake = Held(write=write)
    gateway = quick_gateway(servers.upstream(fake))
    gateway.looking = VisualGate(VisualConfig(tools=["crop"], max_steps=4))
    url = servers.gateway(gateway)
    with open_browser() as driver:
        look(driver, DESKTOP)
        page = Page(driver, url)
        page["look"].click()
        page.ask(photo, n=1)
        until(driver, lambda: "there is no tool" in page.text("candidates"))
        assert "Looking" in page.text("candidates") and page.text("answer") == "–"
        sizes = driver.execute_script(
            "return [...document.querySelectorAll('#candidates canvas')].map(c => [c.width, c.height])"
        )
        # Half of 320 x 200, and of that the left half.
        assert sizes == [[224, 140], [179, 224]]
        fake.holds = False
        page.facts()
        assert page.text("answer") == "9" and "Looking" not in page.text("candidates")
        assert len(page["candidates"].find_elements(By.CSS_SELECTOR, "li li canvas")) == 2
        assert page["candidates"].find_elements(By.CSS_SELECTOR, "img, script") == []
        assert driver.title == "selfverify" and page.complaints() == []
