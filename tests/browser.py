"""Chromium without a window, driven by Selenium: for tests, and for the picture in the documentation.

python tests/browser.py http://127.0.0.1:8080 docs/serving.png
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
DESKTOP, PHONE = (1180, 900), (375, 812)


def missing() -> str | None:
    """Why no browser can be driven here; None if one can."""
    lacking = [] if any(map(shutil.which, BROWSERS)) else ["chromium"]
    lacking += [] if shutil.which("chromedriver") else ["chromedriver"]
    return f"there is no {' and no '.join(lacking)}; `make browser` says how to get it" if lacking else None


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """A browser with a fresh profile, its console recorded."""
    options = webdriver.ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, BROWSERS) if path)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(60)
            driver.set_script_timeout(60)
            yield driver
        finally:
            driver.quit()


def look(driver: webdriver.Chrome, size: tuple[int, int], dark: bool = False) -> None:
    """Take the page for one of this size, on a phone or a screen, light or dark."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})


def until(driver: webdriver.Chrome, true: Callable[[], Any], seconds: float = 60) -> Any:
    """What ``true()`` says once it is true.

    Raises:
        TimeoutError: It never is; with what the page shows.
    """
    end = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > end:
            raise TimeoutError(driver.execute_script("return document.body.innerText"))
        time.sleep(0.02)
    return found


def shot(driver: webdriver.Chrome) -> Image.Image:
    """The whole page as a picture."""
    found = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    return Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")


def main(url: str, path: Path) -> None:
    """Ask the gateway's own example; show the page on a screen, light, and on a phone, dark, in two parts."""
    with open_browser() as driver:
        look(driver, DESKTOP)
        driver.get(url)
        by_id = "return document.getElementById(arguments[0])"
        until(driver, lambda: driver.execute_script(f"{by_id}.naturalWidth", "preview"))
        driver.execute_script(f"{by_id}.click()", "ask")
        until(driver, lambda: driver.execute_script(f"{by_id}.children.length", "facts"))
        driver.execute_script("document.activeElement.blur()")
        pictures = []
        for size, dark in ((DESKTOP, False), (PHONE, True)):
            look(driver, size, dark)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            look(driver, (size[0], height), dark)
            driver.execute_script("scrollTo(0, 0)")
            time.sleep(0.3)
            pictures.append(shot(driver))
        cut = int(driver.execute_script("return document.querySelector('section').offsetTop")) - 8
    screen, phone = pictures
    parts = [phone.crop((0, 0, phone.width, cut)), phone.crop((0, cut, *phone.size))]
    height = max(screen.height, *(part.height for part in parts))
    sheet = Image.new("RGB", (screen.width + 2 * (phone.width + 16), height), "white")
    sheet.paste(screen)
    for i, part in enumerate(parts):
        sheet.paste(part, (screen.width + 16 + i * (phone.width + 16), 0))
    sheet.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
