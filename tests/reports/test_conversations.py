"""Conversations in the report's gallery, in Chromium: the arrow keys go through them, a phone shows them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browser import DESKTOP, PHONE, look, missing, open_browser
from samples import sample, write_samples
from selfverify.evaluation.samples import StoredStep, StoredVerdict
from selfverify.reports.report import write_report

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def step(turn: int, text: str, image: str = "", **given: Any) -> StoredStep:
    """A message; the environment's where an image is named."""
    values, verdict = given.get("values", {}), given.get("verdict")
    if image:
        return StoredStep("environment", turn, "observation", text, [image], None, values, verdict)
    return StoredStep("policy", turn, "action", text, [], "stop", values, verdict)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one problem with two conversations, which show the same two screens."""
    run = tmp_path_factory.mktemp("talks")
    (run / "images").mkdir()
    for name, colour, size in (("wide", "navy", (640, 360)), ("tall", "darkorange", (320, 480))):
        Image.new("RGB", size, colour).save(run / "images" / f"{name}.png")
    samples = []
    for number in range(2):
        steps = [
            step(
                0, "I look for the settings.", values={"delta": 0.31}, verdict=StoredVerdict("1", "1", False)
            ),
            step(1, "The home screen.", "wide.png"),
            step(1, "<script>alert(1)</script> " + "a long thought " * 60),
            step(2, "The settings.", "tall.png"),
            step(2, "It is on.", verdict=StoredVerdict("on", "on", True)),
            step(3, "The home screen again.", "wide.png"),
            step(3, "Done.", verdict=StoredVerdict("on", "on", True)),
        ]
        samples.append(sample("talk/0", number, bool(number), 0.8 * number, steps=steps))
    write_samples(run / "samples.jsonl", {}, samples)
    (run / "gallery").mkdir()
    entry = {"id": "talk/0", "question": "Is the alarm on?", "target": "on", "image": None}
    (run / "gallery" / "problems.json").write_text(json.dumps([entry]))
    return write_report([run], run / "page.html")


@pytest.fixture(scope="module")
def driver(page: Path) -> Iterator[webdriver.Chrome]:
    with open_browser() as found:
        yield found


def opened(driver: webdriver.Chrome, page: Path, size: tuple[int, int]) -> list[Any]:
    """The page's strips, all answers unfolded."""
    look(driver, size)
    driver.get(page.as_uri())
    driver.execute_script("document.querySelectorAll('details.answer').forEach(d => { d.open = true })")
    return driver.find_elements(By.CLASS_NAME, "strip")


def place(driver: webdriver.Chrome, strip: Any) -> tuple[int, int]:
    """The number of the step that is marked, and how far the strip is scrolled; -1 without a mark."""
    script = (
        "const s = arguments[0]; return [[...s.children].findIndex(c => c.classList.contains('at')), "
        "Math.round(s.scrollLeft)]"
    )
    found = driver.execute_script(script, strip)
    return found[0], found[1]


def test_arrow_keys_go_through_a_conversation(driver: webdriver.Chrome, page: Path) -> None:
    strips = opened(driver, page, DESKTOP)
    assert len(strips) == 2 and place(driver, strips[0]) == (-1, 0)
    driver.execute_script("arguments[0].focus()", strips[0])

    def press(key: str) -> tuple[int, int]:
        ActionChains(driver).send_keys(key).perform()
        return place(driver, strips[0])

    seen = [press(Keys.ARROW_RIGHT) for _ in range(9)]
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4, 5, 6, 6, 6]
    assert 0 == seen[0][1] < seen[1][1] < seen[2][1] and seen[-1][1] == max(left for _, left in seen)
    assert press(Keys.ARROW_LEFT)[0] == 5
    assert press(Keys.HOME) == (0, 0) and press(Keys.END)[0] == 6
    # The other strip has stayed where it was.
    assert place(driver, strips[1]) == (-1, 0)
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["screen", "phone"])
def test_images_are_seen_each_time(driver: webdriver.Chrome, page: Path, size: tuple[int, int]) -> None:
    """Each is embedded once, and its colour shows wherever the conversations show it."""
    strips = opened(driver, page, size)
    text = page.read_text(encoding="utf-8")
    assert text.count("<image ") == 2 and "<script>alert" not in text
    width = driver.execute_script("return document.documentElement.scrollWidth")
    assert width <= size[0]
    for strip in strips:
        pictures = strip.find_elements(By.CSS_SELECTOR, "svg")
        assert len(pictures) == 3
        for picture, colour in zip(pictures, ((0, 0, 128), (255, 140, 0), (0, 0, 128)), strict=True):
            driver.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", picture)
            with Image.open(io.BytesIO(picture.screenshot_as_png)) as seen:
                assert seen.convert("RGB").getpixel((seen.width // 2, seen.height // 2)) == colour
