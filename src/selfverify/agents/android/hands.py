"""What is done on a device: fingers, keys, texts, apps."""

from __future__ import annotations

import asyncio
import base64
import shlex
from typing import Literal

from selfverify.agents.android.adb_device import AdbDevice, CommandFailed
from selfverify.agents.android.apps import Apps
from selfverify.agents.screen_tools import (
    LaunchApp,
    LongPress,
    Look,
    PressKey,
    ScreenAction,
    Swipe,
    Tap,
    TypeText,
    WaitFor,
)
from selfverify.core.episode import EnvironmentLost
from selfverify.tasks.tool_calls import ToolError, short_name

KEYBOARD = "com.android.adbkeyboard/.AdbIME"
"""The input method of the app ADBKeyboard, which types what broadcasts say."""
HOLD_MS, SWIPE_MS = 1000, 400
"""How long a finger is held, and how long it moves, as in AndroidLab."""
MOST_DELETED = 100
"""Characters of a field that typing replaces, as in AndroidLab."""

_MOVE_END, _DELETE = "123", "67"


class Hands:
    """Uses one display of a device.

    Args:
        device: The device.
        display: The display's number; None is the default one.
        keyboard: How texts are typed.
        apps: Names of apps.
    """

    def __init__(
        self, device: AdbDevice, display: int | None, keyboard: Literal["adbkeyboard", "input"], apps: Apps
    ) -> None:
        self.device, self.keyboard, self.apps = device, keyboard, apps
        self._input = "input" if display is None else f"input -d {display}"

    async def choose_keyboard(self) -> None:
        """Make ADBKeyboard the input method, where it is to be used.

        Raises:
            EnvironmentLost: It is not installed.
        """
        if self.keyboard == "adbkeyboard":
            try:
                await self.device.shell(f"ime enable {KEYBOARD}; ime set {KEYBOARD}")
            except CommandFailed as error:
                raise EnvironmentLost(
                    f"{self.device} has no ADBKeyboard ({error}); install it, or choose keyboard: input, "
                    "which types ASCII only"
                ) from None

    async def do(self, action: ScreenAction, size: tuple[int, int]) -> None:
        """Carry out an action on a screen of this size.

        Raises:
            ToolError: It cannot be carried out; in words for the agent.
        """
        try:
            await self._do(action, size)
        except CommandFailed as error:
            raise ToolError(f"the phone refuses: {error}") from None

    async def open(self, package: str) -> None:
        """Open an app as its icon does.

        Raises:
            CommandFailed: The app is not installed, or has no icon.
        """
        command = f"monkey -p {shlex.quote(package)} -c android.intent.category.LAUNCHER 1"
        said = await self.device.shell(command)
        if "No activities found" in said or "monkey aborted" in said:
            raise CommandFailed(command, said)

    async def _do(self, action: ScreenAction, size: tuple[int, int]) -> None:
        match action:
            case Look():
                pass
            case WaitFor(seconds):
                await asyncio.sleep(seconds)
            case Tap(box):
                x, y = box.centre
                await self.device.shell(f"{self._input} tap {x} {y}")
            case LongPress(box):
                x, y = box.centre
                await self.device.shell(f"{self._input} swipe {x} {y} {x} {y} {HOLD_MS}")
            case Swipe(box):
                (x, y), (to_x, to_y) = box.centre, action.end(size)
                await self.device.shell(f"{self._input} swipe {x} {y} {to_x} {to_y} {SWIPE_MS}")
            case PressKey(key):
                await self.device.shell(f"{self._input} keyevent KEYCODE_{key.upper()}")
            case TypeText(text):
                await self._type(text)
            case LaunchApp(app):
                if (package := self.apps.package(app)) is None:
                    raise ToolError(
                        f"no app is known as {short_name(app)}; known are {', '.join(self.apps.like(app))}"
                    )
                await self.open(package)

    async def _type(self, text: str) -> None:
        """Replace what is in the field that has the focus, then press Enter."""
        if self.keyboard == "input" and not (text.isascii() and text.isprintable()):
            raise ToolError("this phone's keyboard types printable ASCII characters only")
        deletes = " ".join([_DELETE] * MOST_DELETED)
        await self.device.shell(f"{self._input} keyevent {_MOVE_END} {deletes}")
        if text and self.keyboard == "input":
            # `input text` takes %s for a space.
            parts = [part.replace(" ", "%s") for part in text.split("%s")]
            for number, part in enumerate(parts):
                typed = [part, *(["%", "s"] if number + 1 < len(parts) else [])]
                for piece in filter(None, typed):
                    await self.device.shell(f"{self._input} text {shlex.quote(piece)}")
        elif text:
            coded = base64.b64encode(text.encode()).decode()
            said = await self.device.shell(f"am broadcast -a ADB_INPUT_B64 --es msg {shlex.quote(coded)}")
            if "Broadcast completed" not in said:
                raise CommandFailed("am broadcast", said)
        await self.device.shell(f"{self._input} keyevent KEYCODE_ENTER")
