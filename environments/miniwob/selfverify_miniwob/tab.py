"""A page in the shared browser, whose clock goes on only when it is told to.

Every call has a deadline. A page that crashes, hangs or is gone is a loss; the browser and its other pages
go on.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, TypeVar

from PIL import Image

from selfverify.core.episode import EnvironmentLost
from selfverify.core.images import to_rgb
from selfverify_miniwob.chromium import Chromium, first_line

BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""What the clock of every page shows at first: sessions of one seed are alike on any day."""

CLOSE_SECONDS = 2.0
"""How long a page may take to close; one that hangs is left to the browser's end."""

T = TypeVar("T")


class Tab:
    """One page with a profile of its own.

    Args:
        chromium: The session's part in the browser.
        width: Width in CSS pixels.
        height: Height in CSS pixels.
        scale: Pixels of a screenshot per CSS pixel.
        seconds: How long one call may take.
    """

    def __init__(self, chromium: Chromium, width: int, height: int, scale: int, seconds: float) -> None:
        self.chromium, self.size, self.scale, self.seconds = chromium, (width, height), scale, seconds
        self._context: Any = None
        self._page: Any = None
        self._crashed = False

    async def open(self, url: str) -> None:
        """Open an address in a fresh profile, with the clock at `BEGIN`."""
        await self.close()
        self._crashed = False
        self._context = await self.chromium.context(*self.size, self.scale)

        async def load() -> None:
            await self._context.clock.install(time=BEGIN)
            self._page = await self._context.new_page()
            self._page.on("crash", self._crash)
            await self._page.goto(url)
            await self._page.clock.pause_at(BEGIN.replace(minute=1))

        await self._within(load())

    def _crash(self, page: Any) -> None:
        self._crashed = True

    async def run(self, script: str, argument: Any = None) -> Any:
        """What a script returns."""
        return await self._within(self._open.evaluate(script, argument))

    async def pass_time(self, seconds: float) -> None:
        """Let the page's clock go on: its timers and animations run as if so much time had passed."""
        await self._within(self._open.clock.run_for(round(seconds * 1000)))

    async def click(self, x: float, y: float) -> None:
        """Click a place, in CSS pixels. Whatever lies there gets it; nothing is waited for."""
        await self._within(self._open.mouse.click(x, y))

    async def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the mouse's button at one place, move in steps, and let it go at another."""

        async def move() -> None:
            mouse = self._open.mouse
            await mouse.move(x, y)
            await mouse.down()
            await mouse.move(to_x, to_y, steps=10)
            await mouse.up()

        await self._within(move())

    async def scroll(self, x: float, y: float, by_x: float, by_y: float) -> None:
        """Turn the mouse's wheel over a place, by pixels to the right and down."""

        async def turn() -> None:
            page = self._open
            await page.mouse.move(x, y)
            # Scrolling happens beside the page; two frames later it has.
            await page.mouse.wheel(by_x, by_y)
            await asyncio.sleep(0.1)

        await self._within(turn())

    async def type(self, text: str) -> None:
        """Type a text with the keyboard; characters that no key has are put in."""
        await self._within(self._open.keyboard.type(text))

    async def press(self, keys: str) -> None:
        """Press a key or several, such as ``Control+a``."""
        await self._within(self._open.keyboard.press(keys))

    async def picture(self, width: int, height: int) -> Image.Image:
        """A screenshot of the upper left part of the page, in CSS pixels; animations are shown ended."""
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        png = await self._within(self._open.screenshot(clip=clip, animations="disabled", type="png"))
        return to_rgb(Image.open(io.BytesIO(png)))

    async def close(self) -> None:
        """Close the page and forget its profile."""
        context, self._context, self._page = self._context, None, None
        if context is not None:
            try:
                await asyncio.wait_for(context.close(), CLOSE_SECONDS)
            except Exception:  # it is gone already
                return

    @property
    def _open(self) -> Any:
        if self._page is None:
            raise EnvironmentLost("the page is closed")
        return self._page

    async def _within(self, work: Awaitable[T]) -> T:
        """``work`` within the deadline; what Playwright raises is a loss."""
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(work, self.seconds)
        except TimeoutError:
            raise EnvironmentLost(f"the page did not answer within {self.seconds:g} seconds") from None
        except Error as error:
            what = "has crashed" if self._crashed else "failed"
            raise EnvironmentLost(f"the page {what}: {first_line(error)}") from None
