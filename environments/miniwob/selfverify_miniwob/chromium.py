"""One Chromium for all sessions of a process, driven by Playwright. It has no network."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import weakref
from dataclasses import dataclass, field
from typing import Any

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import ConfigError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Programs that are looked for where none is named."""
SHARING_A_BROWSER = {"step_threads": 16, "step_timeout_s": 120.0, "concurrent": 16}
"""Limits (`RolloutLimits`) of conversations that share a browser: sixteen pages do so well."""
START_SECONDS = 30.0
"""How long the browser may take to start or to open a page."""

_FLAGS = (
    # No name, and no address either, leads anywhere; pages come from files or from the caller.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # FlightWoB's pages read the frames in them, which stand beside them as files.
    "--allow-file-access-from-files",
)


def missing(executable: str | None = None) -> str:
    """What is lacking to drive a browser here, and how to get it; empty where nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    if executable is not None and shutil.which(executable) is None:
        return f"there is no program {executable}: name Chromium's executable, or none"
    if executable is None and not any(map(shutil.which, NAMES)):
        return (
            "there is no Chromium (Debian: apt-get install chromium; `playwright install` is not needed). "
            "One in another place can be named as `executable`"
        )
    return ""


@dataclass(eq=False)
class _Shared:
    """The browser of one event loop, and how many sessions use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    playwright: Any = None
    browser: Any = None
    executable: str = ""
    users: int = 0


browsers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = weakref.WeakKeyDictionary()


class Chromium:
    """A session's part in the browser. The first one of an event loop starts it, the last one ends it.

    Args:
        executable: Chromium's program; None looks for one.

    Raises:
        ConfigError: Something is missing here.
    """

    def __init__(self, executable: str | None = None) -> None:
        if lacking := missing(executable):
            raise ConfigError(f"the browser cannot be used: {lacking}")
        self.executable = executable or next(path for path in map(shutil.which, NAMES) if path)
        self._held: _Shared | None = None

    async def context(self, width: int, height: int, scale: int) -> Any:
        """A fresh profile without network, for pages of this size in CSS pixels.

        Raises:
            ConfigError: The browser cannot be started.
            EnvironmentLost: It does not answer.
        """
        shared = browsers.setdefault(asyncio.get_running_loop(), _Shared())
        async with shared.lock:
            if self._held is not shared:
                shared.users += 1
                self._held = shared
            if shared.browser is None or not shared.browser.is_connected():
                await self._start(shared)
        try:
            made = shared.browser.new_context(
                viewport={"width": width, "height": height},
                device_scale_factor=scale,
                offline=True,
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
            )
            return await asyncio.wait_for(made, START_SECONDS)
        except Exception as error:
            raise EnvironmentLost(f"the browser opens no page: {first_line(error)}") from None

    async def close(self) -> None:
        """Give the part back; the last one to do so ends the browser."""
        shared, self._held = self._held, None
        if shared is None:
            return
        async with shared.lock:
            shared.users -= 1
            if shared.users == 0:
                await _stop(shared)

    async def _start(self, shared: _Shared) -> None:
        from playwright.async_api import async_playwright

        await _stop(shared)
        shared.playwright = await async_playwright().start()
        try:
            shared.browser = await shared.playwright.chromium.launch(
                executable_path=self.executable, args=list(_FLAGS), timeout=START_SECONDS * 1000
            )
        except Exception as error:
            await _stop(shared)
            raise ConfigError(f"{self.executable} does not start: {first_line(error)}") from None


async def _stop(shared: _Shared) -> None:
    """End the browser and Playwright's own process, whatever state they are in."""
    browser, playwright = shared.browser, shared.playwright
    shared.browser = shared.playwright = None
    for end in (browser.close if browser is not None else None, playwright.stop if playwright else None):
        if end is not None:
            try:
                await asyncio.wait_for(end(), 10)
            except Exception:  # it is gone already
                continue


def first_line(error: BaseException) -> str:
    """The first line of what Playwright says, which is followed by logs."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return said if len(said) <= 300 else said[:297] + "..."
