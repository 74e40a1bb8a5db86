"""What a device shows: its screen in words, as a picture, and which app is in front."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from selfverify.agents.android.adb_device import AdbDevice, CommandFailed
from selfverify.agents.android.hierarchy import UnreadableScreen, read_hierarchy
from selfverify.agents.screens import Screen, describe
from selfverify.core.episode import EnvironmentLost
from selfverify.core.images import to_rgb

TRIES = 3
"""How often a dump is tried; uiautomator refuses while a screen moves."""

_PNG = b"\x89PNG\r\n\x1a\n"
_SIZE = re.compile(r"(Physical|Override) size: (\d{1,5})x(\d{1,5})")
_FOCUS = re.compile(r"mCurrentFocus=Window\{\S+ \S+ ([^\s/}]+)(?:/([^\s}]+))?\}")
_PHYSICAL = re.compile(r"^Display (\d+) ", re.M)


class Focus(NamedTuple):
    """The window that has the focus; empty where none has."""

    package: str
    activity: str


@dataclass(frozen=True, slots=True)
class Capture:
    """What a device shows at one moment.

    Args:
        focus: Which app is in front.
        dump: What uiautomator has printed; empty where it was not asked.
        screen: The screen that it describes; None where it cannot be read, or was not asked for.
        picture: A screenshot, where one was asked for and there is one.
        png: The same as the device has sent it.
        lacking: What could not be shown and why, in words for the agent.
        size: Width and height in pixels, as the device is held.
    """

    focus: Focus
    dump: bytes
    screen: Screen | None
    picture: Image.Image | None
    png: bytes
    lacking: tuple[str, ...]
    size: tuple[int, int]

    @property
    def words(self) -> str:
        """The screen in words; empty where it cannot be read."""
        return "" if self.screen is None else describe(self.screen)

    def same(self, other: Capture) -> bool:
        """Whether both show the same."""
        pictures = [None if v.picture is None else v.picture.tobytes() for v in (self, other)]
        return self.focus == other.focus and self.words == other.words and pictures[0] == pictures[1]


class Viewer:
    """Looks at one display of a device.

    Args:
        device: The device.
        display: The display's number; None is the default one.
        pause: Seconds between two tries.
    """

    def __init__(self, device: AdbDevice, display: int | None, pause: float) -> None:
        self.device, self.display, self.pause = device, display, pause
        self.size = (0, 0)
        """Width and height in the display's natural position."""
        self._physical = ""
        number = display or 0
        self._file = f"/data/local/tmp/selfverify-{number}.xml"

    async def measure(self) -> None:
        """Ask how large the display is, and which number the screenshot's program knows it by.

        Raises:
            EnvironmentLost: There is no such display.
        """
        which = "" if self.display is None else f" -d {self.display}"
        try:
            said = await self.device.shell(f"wm size{which}")
        except CommandFailed as error:
            said = error.output
        sizes = {kind: (int(width), int(height)) for kind, width, height in _SIZE.findall(said)}
        if not sizes:
            raise EnvironmentLost(
                f"{self.device} has no display {self.display or 0}: {' '.join(said.split())}"
            )
        self.size = sizes.get("Override") or sizes["Physical"]
        if self.display:
            listed = _PHYSICAL.findall(await self.device.shell("dumpsys SurfaceFlinger --display-id"))
            if self.display >= len(listed):
                raise EnvironmentLost(
                    f"{self.device} lists {len(listed)} displays of which a picture can be taken, and "
                    f"display {self.display} is asked for"
                )
            self._physical = listed[self.display]

    async def focus(self) -> Focus:
        """Which app is in front."""
        try:
            said = await self.device.shell("dumpsys window | grep mCurrentFocus")
        except CommandFailed:
            return Focus("", "")
        found = _FOCUS.findall(said)
        return Focus(*found[min(self.display or 0, len(found) - 1)]) if found else Focus("", "")

    async def look(self, words: bool, picture: bool) -> Capture:
        """What is shown now.

        Args:
            words: Whether the screen is read.
            picture: Whether a screenshot is taken.
        """
        focus = await self.focus()
        screen, dump, lacking = await self._read(focus) if words else (None, b"", [])
        image, png = await self._photograph() if picture else (None, b"")
        if picture and image is None:
            lacking.append("no screenshot: the device gives none, as of apps that forbid them")
        elif image is not None and image.getbbox() is None:
            lacking.append("the screenshot is black: the app forbids screenshots, or the screen is off")
        held = image.size if image is not None else self.size
        size = screen.size if screen is not None else held
        return Capture(focus, dump, screen, image, png, tuple(lacking), size)

    async def _read(self, focus: Focus) -> tuple[Screen | None, bytes, list[str]]:
        """The screen, the dump, and what is wrong with it."""
        every = " --windows" if self.display else ""
        command = f"rm -f {self._file}; uiautomator dump{every} {self._file} && cat {self._file}"
        dump, wrong = b"", ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(self.pause)
            dump = await self.device.output(command)
            try:
                # In a thread, as are pictures: large ones take long to read.
                read = asyncio.to_thread(read_hierarchy, dump, self.size, focus.package, self.display or None)
                return await read, dump, []
            except UnreadableScreen as error:
                wrong = str(error)
        return None, dump, [f"the screen cannot be described: {wrong}"]

    async def _photograph(self) -> tuple[Image.Image | None, bytes]:
        """A screenshot, also as it was sent; None where the device gives none."""
        which = f" -d {self._physical}" if self._physical else ""
        # A device with several displays says so before the picture.
        _, mark, rest = (await self.device.output(f"screencap -p{which} 2>/dev/null")).partition(_PNG)
        try:
            return await asyncio.to_thread(_decoded, mark + rest), mark + rest
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None, b""


def _decoded(png: bytes) -> Image.Image:
    return to_rgb(Image.open(io.BytesIO(png), formats=["PNG"]))
