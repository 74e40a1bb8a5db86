"""The page at ``/`` without a browser: what is sent, to whom, and what it may load."""

from __future__ import annotations

import base64
import io
import re
from importlib.resources import files

import pytest
import requests
from PIL import Image

from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.page import EXAMPLES, digits_example
from serving_servers import CHAT, Body, FakeUpstream, Loop, question, quick_gateway

STATIC = files("selfverify.serving") / "static"
SOURCES = {name: (STATIC / name).read_text("utf-8") for name in ("index.html", "page.js", "page.css")}


def root(url: str) -> str:
    """A gateway's address without ``/v1``."""
    return url.removesuffix("/v1")


def test_page_is_open_where_keys_are_needed_and_nothing_else_is(servers: Loop) -> None:
    fake = FakeUpstream()
    url, _ = servers.before(fake, keys=["secret"], api_key="of-the-gateway")
    for path in ("/", "/page/page.js", "/page/page.css", "/page/settings", "/health"):
        assert requests.get(root(url) + path, timeout=10).status_code == 200, path
    assert requests.get(root(url) + "/page/settings", timeout=10).json()["needs_key"] is True
    for path in ("/v1/models", "/metrics", "/page/nothing", "/page/../metrics"):
        for key in ("", "Bearer other", "secret"):
            refused = requests.get(root(url) + path, headers={"Authorization": key}, timeout=10)
            assert refused.status_code == 401, path
    asked: Body = {"json": question(), "headers": {"Authorization": "Bearer secret"}}
    assert requests.post(f"{url}/{CHAT}", **asked, timeout=10).ok and fake.keys == ["Bearer of-the-gateway"]


def test_every_part_of_the_page_carries_the_strict_policy(servers: Loop) -> None:
    url, _ = servers.before(FakeUpstream())
    kinds = {"/": "text/html", "/page/page.js": "text/javascript", "/page/page.css": "text/css"}
    for path, kind in kinds.items():
        headers = requests.get(root(url) + path, timeout=10).headers
        assert headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["trusted-types"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["Content-Security-Policy"]


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(theme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", SOURCES["page.css"], re.S)[theme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    pairs = [(ink, ground, 4.5) for ink in ("ink", "faint", "accent") for ground in ("paper", "ground")]
    pairs += [("bad", "paper", 4.5), ("ink", "won", 4.5), ("faint", "won", 4.5), ("on-accent", "accent", 4.5)]
    pairs += [("ink", "rail", 4.5), ("faint", "rail", 4.5), ("faint", "paper", 3.0)]
    pairs += [("won-line", "won", 3.0), ("won-line", "paper", 3.0), ("bar", "rail", 1.5)]
    for ink, ground, least in pairs:
        bright, dim = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= least, (ink, ground)


def test_fields_start_as_the_gateway_was_started(servers: Loop) -> None:
    url, _ = servers.before(
        FakeUpstream(),
        GatewayConfig(best_of=BestOfConfig(n=5, strategy="majority", answers="set"), max_n=20),
    )
    found = requests.get(root(url) + "/page/settings", timeout=10).json()
    assert (
        found["best_of"]
        == BestOfConfig(n=5, strategy="majority", answers="set", verifier="inline").model_dump()
    )
    assert found["most"] == 20 and found["examples"] == 0
    refused = requests.get(root(url) + "/page/example", timeout=10)
    assert refused.status_code == 404 and "built-in model" in refused.json()["error"]["message"]


def test_example_is_a_held_out_problem_of_the_task() -> None:
    found = digits_example(3)
    head, data = found["image"].split(",")
    assert head == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (48, 32)
    assert re.fullmatch(r"Pick 3 of the digits shown that add up to \d+\.", found["question"])
    assert found != digits_example(4)


def test_example_with_a_wrong_number_is_refused(servers: Loop) -> None:
    gateway = quick_gateway("http://127.0.0.1:9")
    gateway.example = digits_example
    url = servers.gateway(gateway)
    assert requests.get(f"{root(url)}/page/example?index=3", timeout=30).json()["name"] == "example 4"
    for index in ("-1", str(EXAMPLES), "x", "1e3", "", "٣", "9" * 5000):
        found = requests.get(f"{root(url)}/page/example", params={"index": index}, timeout=10)
        assert found.status_code == 400, index
