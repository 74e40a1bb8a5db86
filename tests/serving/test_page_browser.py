"""The page at ``/`` in a real Chromium. Skipped where there is none: `make browser` says how to get it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from browser import DESKTOP, look, missing, open_browser, until
from selfverify.selection.calibration import Calibration
from selfverify.serving.backend import use_of
from selfverify.serving.config import BackendConfig, BestOfConfig, GatewayConfig, ServeConfig
from selfverify.serving.server import start
from selfverify.serving.visual import VisualGate
from selfverify.visual.config import VisualConfig
from serving_servers import Body, FakeUpstream, Loop, quick_gateway, tagged

from .conftest import data_url, png
from .test_looking_gate import STEP

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    with open_browser() as driver:
        yield driver


@dataclass
class Gated(FakeUpstream):
    """Streams as many candidates as it is allowed to; then what `ending` says: wait, or break off."""

    allowed: int = 100
    breaks: bool = False
    waits: int = field(default=0, init=False)

    async def _stream(self, request: web.Request, texts: list[str], fault: Any) -> web.StreamResponse:
        if self.allowed >= len(texts):
            return await super()._stream(request, texts, fault)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for i, text in enumerate(texts):
            while i >= self.allowed:
                if self.breaks:
                    assert request.transport is not None
                    request.transport.close()
                    return response
                await asyncio.sleep(0.01)
            choice = {"index": i, "delta": {"content": text}, "finish_reason": "stop"}
            await response.write(b"data: " + web.json_response({"choices": [choice]}).body + b"\n\n")  # type: ignore[operator]
        usage = {"prompt_tokens": 10, "completion_tokens": 7 * len(texts)}
        await response.write(b"data: " + web.json_response({"choices": [], "usage": usage}).body + b"\n\n")  # type: ignore[operator]
        await response.write(b"data: [DONE]\n\n")
        return response


class Page:
    """The page, as somebody sees it who uses it."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        driver.get_log("browser")
        driver.get(url.removesuffix("v1"))
        until(driver, lambda: self["n"].get_attribute("value"))

    def __getitem__(self, id: str) -> WebElement:
        return self.driver.find_element(By.ID, id)

    def text(self, id: str) -> str:
        return self[id].get_attribute("textContent") or ""

    def wait(self, id: str, part: str) -> str:
        """The text of an element, once it holds ``part``."""
        until(self.driver, lambda: part in self.text(id))
        return self.text(id)

    def choose(self, image: Path) -> None:
        """Choose a file; returns when it is shown or refused."""
        self.driver.execute_script("document.getElementById('alert').textContent = ''")
        self["file"].send_keys(str(image))
        until(self.driver, lambda: self["preview"].is_displayed() or self.text("alert"))

    def ask(self, image: Path | None = None, question: str = "7+2?", n: int = 4) -> None:
        """Fill in the form and send it."""
        if image:
            self.choose(image)
        for id, value in (("question", question), ("n", str(n))):
            self[id].clear()
            self[id].send_keys(value)
        self["ask"].click()

    def rows(self) -> list[str]:
        return [
            row.text.split("\nWhat it wrote")[0]
            for row in self["candidates"].find_elements(By.TAG_NAME, "li")
        ]

    def facts(self) -> dict[str, str]:
        pairs = until(self.driver, lambda: self["facts"].find_elements(By.TAG_NAME, "div"))
        return dict(pair.text.split("\n") for pair in pairs)

    def beside(self) -> str | None:
        """The field that the error stands beside, which is marked as wrong."""
        return self.driver.execute_script(  # type: ignore[no-any-return]
            "const wrong = document.querySelector('[aria-invalid=true]');"
            "const field = wrong && wrong.closest('.field'), alert = document.getElementById('alert');"
            "return field && (field.contains(alert) || field.nextElementSibling === alert) ? wrong.id : null"
        )

    def complaints(self) -> list[str]:
        """What the browser's console shows, but for requests that were refused on purpose."""
        entries = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        return [text for text in entries if "Failed to load resource" not in text]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(png((320, 200)))
    return path


def test_candidates_come_one_by_one_and_the_winner_is_explained(
    chromium: Chrome, servers: Loop, photo: Path
) -> None:
    texts = [tagged("9", "0.9"), tagged("8", "0.8"), tagged("9", "0.7"), "nothing in tags <answer>"]
    upstream = Gated(write=lambda body, i: texts[i], allowed=0)
    url, _ = servers.before(upstream, GatewayConfig(best_of=BestOfConfig(strategy="best")))
    look(chromium, DESKTOP)
    page = Page(chromium, url)
    page.ask(photo)
    for count in (1, 2, 3):
        upstream.allowed = count
        page.wait("progress", f"{count} of 4")
        assert len(page.rows()) == count and page.text("answer") == "–"
        assert page["stop"].is_enabled() and not page["ask"].is_enabled()
    upstream.allowed = 4
    facts = page.facts()
    assert page.rows() == [
        "1\n9\nchosen\n0.90", "2\n8\n0.80", "3\n9\nsame answer\n0.70", "4\nno readable answer\nno score\n–"
    ]  # fmt: skip
    assert page.text("answer") == "9"
    assert facts["Votes"] == "2 of 4" and facts["Score"] == "0.90" and facts["Tokens written"] == "28"
    assert page["candidates"].get_attribute("aria-busy") == "false"
    [sent] = upstream.seen
    assert sent["n"] == 4 and sent["model"] == "m" and "best_of" not in sent
    picture, question = sent["messages"][0]["content"]
    assert picture["image_url"]["url"] == data_url(photo.read_bytes())
    assert question["text"].startswith("7+2? ")
    assert page.complaints() == []


def test_image_can_be_pasted_and_dropped(chromium: Chrome, servers: Loop) -> None:
    upstream = FakeUpstream()
    url, _ = servers.before(upstream)
    give = """
        const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], arguments[1], { type: "image/png" }));
        const more = { bubbles: true, cancelable: true };
        const event = arguments[2] === "paste"
            ? new ClipboardEvent("paste", { clipboardData: data, ...more })
            : new DragEvent("drop", { dataTransfer: data, ...more });
        document.getElementById("question").dispatchEvent(event);
        return event.defaultPrevented;
    """
    for way, size in (("paste", (40, 30)), ("drop", (50, 60))):
        page = Page(chromium, url)
        data = base64.b64encode(png(size)).decode()
        assert chromium.execute_script(give, data, f"{way}.png", way) is True
        assert page.wait("file-name", way) == f"{way}.png, {size[0]} × {size[1]}"
        page.ask(n=1)
        page.facts()
        assert upstream.seen[-1]["messages"][0]["content"][0]["image_url"]["url"].endswith(data)
        assert page.complaints() == []


class Late:
    """Makes examples when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go = 0, threading.Event()

    def __call__(self, index: int) -> dict[str, Any]:
        self.asked += 1
        assert self.go.wait(60)
        return {"name": "late", "image": data_url(png()), "question": "late?", "answers": "set"}


def test_answer_stands_beside_what_was_asked(chromium: Chrome, servers: Loop, photo: Path) -> None:
    """Nothing changes meanwhile, not by an example that is late either. Another image ends the answer."""
    upstream = Gated(allowed=0)
    gateway, late = quick_gateway(servers.upstream(upstream)), Late()
    gateway.example = late
    late.go.set()
    page = Page(chromium, servers.gateway(gateway))
    page.wait("file-name", "late")
    late.go.clear()
    page.choose(photo)
    page["example"].click()
    until(chromium, lambda: late.asked == 2)
    page.ask(question="7+2?", n=2)
    assert not page["question"].is_enabled() and not page["example"].is_enabled()
    late.go.set()
    upstream.allowed = 2
    page.facts()
    assert page.text("asked") == "7+2?" and page["question"].get_attribute("value") == "7+2?"
    assert "photo.png" in page.text("file-name")
    page["question"].send_keys(" Really?")
    assert page.text("asked") == "7+2?" and page.text("answer") != "–"
    other = photo.with_name("other.png")
    other.write_bytes(png())
    page.choose(other)
    until(chromium, lambda: page.text("answer") == "–" and not page.rows() and not page.text("asked"))
    assert page.complaints() == []


def test_what_is_missing_or_no_image_is_said_before_anything_is_sent(
    chromium: Chrome, servers: Loop, photo: Path, tmp_path: Path
) -> None:
    upstream = FakeUpstream()
    url, gateway = servers.before(upstream)
    page = Page(chromium, url)
    page.ask()
    assert page.wait("alert", "image") and page.beside() == "file"
    assert chromium.switch_to.active_element == page["file"]
    text = tmp_path / "notes.png"
    text.write_text("no picture at all")
    page.choose(text)
    assert page.wait("alert", "notes.png") and page.beside() == "file"
    assert not page["preview"].is_displayed()
    page.ask(photo, question="")
    assert page.wait("alert", "question") and page.beside() == "question"
    page.ask(n=0)
    assert page.wait("alert", "64") and page.beside() == "n"
    assert upstream.seen == [] and gateway.metrics.candidates._value.get() == 0
    page.ask(n=2)
    page.facts()
    assert page.text("alert") == "" and page.complaints() == []


def test_image_beyond_the_gateways_limits_is_refused(chromium: Chrome, servers: Loop, photo: Path) -> None:
    for limit, said in (
        ({"max_megapixels": 0.001}, "0.001 million"),
        ({"max_body_mb": 200 / 2**20}, "0.0001 MB"),
    ):
        url, _ = servers.before(FakeUpstream(), GatewayConfig().model_copy(update=limit))
        page = Page(chromium, url)
        page.choose(photo)
        assert "photo.png" in page.text("alert") and said in page.text("alert")
        assert not page["preview"].is_displayed()


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after the stream began"])
@pytest.mark.parametrize(("fault", "said"), [(500, "told to fail"), ("garbage", "cannot be used")])
def test_servers_failure_is_told_and_asking_again_helps(
    chromium: Chrome, servers: Loop, photo: Path, fault: Any, said: str, begun: bool
) -> None:
    broken = [True]

    def fails(body: Body) -> Any:
        return fault if broken else None

    fake = FakeUpstream(fault=fails, delay_s=0.2 * begun)
    url, _ = servers.before(fake, keep_alive_s=0.02 if begun else 5.0)
    page = Page(chromium, url)
    page.ask(photo)
    assert said in page.wait("alert", "The gateway says") and page.beside() is None
    assert page.text("reason").startswith("There is no answer.") and page["ask"].is_enabled()
    broken.clear()
    page.ask()
    assert page.facts()["Votes"] and page.text("alert") == ""
    assert page.complaints() == []


def test_connection_that_breaks_off_is_told(chromium: Chrome, servers: Loop, photo: Path) -> None:
    gateway, stack = quick_gateway(servers.upstream(Gated(allowed=1))), AsyncExitStack()
    page = Page(chromium, f"http://127.0.0.1:{servers.run(start(gateway, '127.0.0.1', 0, stack, 0.1))}/v1")
    page.ask(photo)
    page.wait("progress", "1 of 4")
    servers.run(stack.aclose())
    assert page.wait("alert", "connection") and "1 of 4" in page.text("reason")
    page.ask()
    assert page.wait("alert", "cannot be reached")


@pytest.mark.parametrize("came", [0, 2])
def test_stop_cancels_the_candidates_that_are_still_coming(
    chromium: Chrome, servers: Loop, photo: Path, came: int
) -> None:
    upstream = Gated(allowed=came)
    url, gateway = servers.before(upstream)
    page = Page(chromium, url)
    page.ask(photo, n=4)
    until(chromium, lambda: upstream.open == 1 and len(page.rows()) == came)
    page["stop"].click()
    assert not came or f"{came} of 4" in page.wait("reason", "Stopped by you")
    until(chromium, lambda: upstream.open == 0 and gateway.in_flight == 0)
    assert upstream.left == 1 and len(upstream.seen) == 1
    assert page.text("answer") == "–" and page.text("alert") == ""
    upstream.allowed = 100
    page.ask(n=4)
    assert page.facts()["Votes"] and len(page.rows()) == 4
    assert page.complaints() == []


def test_key_is_asked_for_where_one_is_needed(chromium: Chrome, servers: Loop, photo: Path) -> None:
    url, _ = servers.before(FakeUpstream(), keys=["right"])
    page = Page(chromium, url)
    assert page["key"].is_displayed()
    page.ask(photo)
    assert page.wait("alert", "key") and page.beside() == "key"
    assert chromium.switch_to.active_element == page["key"]
    page["key"].send_keys("wrong", Keys.TAB)
    assert page.wait("alert", "does not know")
    page["key"].clear()
    page["key"].send_keys("right")
    page.ask()
    page.facts()
    assert page.text("alert") == ""
    url, _ = servers.before(FakeUpstream())
    assert not Page(chromium, url)["key"].is_displayed()


def test_probability_is_shown_where_it_is_calibrated_and_doubt_withholds(
    chromium: Chrome, servers: Loop, photo: Path
) -> None:
    chosen = BestOfConfig(n=4, strategy="majority")
    calibration = Calibration(
        "isotonic", (0.0, 1.0), (0.0, 0.8), threshold=0.3, fitted_on=use_of(chosen, "inline")
    )
    answers = ["1", "1", "1", "2"]
    upstream = FakeUpstream(write=lambda body, i: tagged(answers[i]))
    url, _ = servers.before(upstream, GatewayConfig(best_of=chosen), calibration=calibration)
    page = Page(chromium, url)
    page.ask(photo)
    assert page.facts()["Probability, calibrated"] == "0.60"
    answers[:] = ["1", "2", "3", "4"]
    page.ask()
    page.wait("answer", "sure")
    assert page.facts()["Probability, calibrated"] == "0.20"
    assert [row for row in page.rows() if "withheld" in row] and not [r for r in page.rows() if "chosen" in r]
    assert page["candidates"].find_elements(By.CSS_SELECTOR, ".won") == []


def test_an_unsure_answer_is_neither_green_nor_said_to_have_most_votes(
    chromium: Chrome, servers: Loop, photo: Path
) -> None:
    """One candidate with a high score against four that agree; then five that agree and are sure."""
    texts = [tagged("8", "0.9"), *[tagged("9", "0.1")] * 4]
    url, _ = servers.before(FakeUpstream(write=lambda body, i: texts[i]))
    page = Page(chromium, url)
    page.ask(photo, n=5)
    page.facts()
    assert page.text("answer") == "8"
    assert "unsure" in page.text("reason")
    colour = "return getComputedStyle(arguments[0]).backgroundColor"
    unsure = chromium.execute_script(colour, page["result"])
    assert "won" not in (page["result"].get_attribute("class") or "")
    texts[:] = [tagged("9", "0.9")] * 5
    page.ask(n=5)
    page.wait("answer", "9")
    page.facts()
    assert "unsure" not in page.text("reason")
    assert chromium.execute_script(colour, page["result"]) != unsure


@pytest.mark.parametrize(("width", "dark"), [(320, False), (375, True), (832, True), (1280, False)])
def test_nothing_is_cut_off(chromium: Chrome, servers: Loop, photo: Path, width: int, dark: bool) -> None:
    words = "incomprehensibilities" * 12 if dark else "nine and a half " * 9
    url, _ = servers.before(FakeUpstream(write=lambda body, i: tagged(words)), keys=["right"])
    look(chromium, (width, 900), dark)
    page = Page(chromium, url)
    page["key"].send_keys("right")
    page.ask(photo, n=2)
    page.facts()
    wide = """return [...document.querySelectorAll("body *")].filter((e) => e.offsetParent && e.id !== "file")
        .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1
            || e.getBoundingClientRect().right > arguments[0])
        .map((e) => e.outerHTML.slice(0, 90))"""
    assert chromium.execute_script(wide, width) == []
    cut = """const pen = document.createElement("canvas").getContext("2d");
        return [...document.querySelectorAll("select")].filter((e) => e.offsetParent).flatMap((e) => {
            const style = getComputedStyle(e);
            pen.font = style.font;
            const room = e.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 20;
            return [...e.options].map((o) => o.textContent).filter((t) => pen.measureText(t).width > room);
        })"""
    assert chromium.execute_script(cut) == []
    small = """return [...document.querySelectorAll("button, select, textarea, input:not([type=checkbox])")]
        .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 24).map((e) => e.id)"""
    assert chromium.execute_script(small) == []
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert chromium.execute_script(ground) == ("rgb(20, 23, 28)" if dark else "rgb(246, 247, 249)")
    look(chromium, DESKTOP)


def test_every_control_has_a_name_and_the_form_works_by_keyboard(
    chromium: Chrome, servers: Loop, photo: Path
) -> None:
    url, _ = servers.before(FakeUpstream(), keys=["right"])
    page = Page(chromium, url)
    nodes = chromium.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "textbox", "spinbutton", "combobox", "checkbox", "list", "form", "region", "img"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node.get("role", {}).get("value") in roles
    ]
    assert [role for role, name in named if not name] == []
    names = {name for _, name in named}
    assert {"Question", "Candidates", "Choose by", "API key", "Ask", "Stop"} <= names
    page["file"].send_keys(str(photo))
    chromium.execute_script("document.activeElement.blur()")
    order = []
    for _ in range(7):
        ActionChains(chromium).send_keys(Keys.TAB).perform()
        order.append(chromium.switch_to.active_element.get_attribute("id"))
    assert order == ["file", "question", "n", "strategy", "answers", "early", "key"]
    page["question"].send_keys("7+2?")
    page["key"].send_keys("right", Keys.ENTER)
    page.facts()


@pytest.fixture(scope="module")
def digits() -> Iterator[str]:
    """A gateway with the built-in model."""
    from selfverify.serving.server import open_gateway

    servers = Loop()
    try:
        yield servers.gateway(open_gateway(ServeConfig(backend=BackendConfig(model="builtin:digits"))))
    finally:
        servers.close()


def test_newcomer_sees_the_built_in_model_answer_an_example(chromium: Chrome, digits: str) -> None:
    page = Page(chromium, digits)
    assert page.wait("file-name", "example 1") == "example 1"
    assert "add up to" in (page["question"].get_attribute("value") or "")
    page["example"].click()
    page.wait("file-name", "example 2")
    page["ask"].click()
    facts = page.facts()
    assert len(page.rows()) == 8 and facts["Samples used"] == "8, all drawn"
    assert len(page.text("answer").split()) == 3
    assert page.complaints() == []


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


def test_steps_appear_on_the_page(chromium: Chrome, servers: Loop, photo: Path) -> None:
    """Before there is an answer each step stands there with the part that it shows; then beside it."""

    def write(body: Body, number: int) -> str:
        said = len(body["messages"]) // 2
        if said == 0:
            return json.dumps(json.loads(STEP) | {"thought": HOSTILE})
        if said == 1:
            inner = {"image_index": 2, "bounding_box": [0, 0, 500, 1000]}
            return json.dumps({"thought": "", "action_name": "crop", "action": inner})
        if said == 2:
            return json.dumps({"thought": "", "action_name": HOSTILE, "action": {}})
        return tagged(HOSTILE, "0.7")

    fake = Held(write=write)
    gateway = quick_gateway(servers.upstream(fake))
    gateway.looking = VisualGate(VisualConfig(tools=["crop"], max_steps=4))
    url = servers.gateway(gateway)
    look(chromium, DESKTOP)
    page = Page(chromium, url)
    page["look"].click()
    page.ask(photo, n=1)
    until(chromium, lambda: "there is no tool" in page.text("candidates"))
    assert "Looking" in page.text("candidates") and page.text("answer") == "–"
    sizes = chromium.execute_script(
        "return [...document.querySelectorAll('#candidates canvas')].map(c => [c.width, c.height])"
    )
    # Half of 320 x 200, and of that the left half.
    assert sizes == [[224, 140], [179, 224]]
    fake.holds = False
    page.facts()
    assert page.text("answer") == HOSTILE and "Looking" not in page.text("candidates")
    assert len(page["candidates"].find_elements(By.CSS_SELECTOR, "li li canvas")) == 2
    assert page["candidates"].find_elements(By.CSS_SELECTOR, "img, script") == []
    [wrote] = page["candidates"].find_elements(By.TAG_NAME, "details")
    assert HOSTILE in (wrote.get_attribute("textContent") or "")
    assert chromium.title == "selfverify" and page.complaints() == []
