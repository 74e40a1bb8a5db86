"""One Android device behind an adb server: its commands, an emulator's console, gestures and texts."""

from __future__ import annotations

import asyncio
import base64
import difflib
import re
import shlex
import socket
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from selfverify.agents import tools
from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import ConfigError, needs
from selfverify.tasks.tool_calls import ToolError, short_name

OLDEST_SERVER = 39
"""Version of the adb server's protocol: platform-tools of 2017. All since 2018 have 41."""
MOST_OUTPUT = 64 * 2**20
"""Bytes that a command may print; a screenshot of 8K has fewer."""

_EXIT = "selfverify-exit:"
_POLL = 0.5
_in_use: set[tuple[str, int, str]] = set()

T = TypeVar("T")


class CommandFailed(Exception):
    """A command has ended with another code than 0.

    Args:
        command: The command line.
        output: Its output.
    """

    def __init__(self, command: str, output: str) -> None:
        said = " ".join(output.split())[:300] or "it said nothing"
        super().__init__(f"{command.split()[0]} failed: {said}")
        self.output = output


class AdbDevice:
    """A device; one session may use it at a time. Commands have deadlines and run beside the event loop.

    The adb server is spoken to directly. It is never started, nor is an ``adb`` program run: two programs of
    different versions stop each other's servers.

    Args:
        serial: As ``adb devices`` lists it.
        server: Host and port of the adb server.
        seconds: How long a command may take.
        console: Where its emulator's console is, as HOST:PORT; None takes the server's host and the serial's
            port.
    """

    def __init__(self, serial: str, server: str, seconds: float, console: str | None = None) -> None:
        self.serial, self.seconds, self._console = serial, seconds, console
        self.host, self.port = _host_and_port(server)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"adb-{serial}")
        self._open = self._closed = False

    async def open(self) -> None:
        """See that the server and the device answer, and take the device.

        Raises:
            ConfigError: adbutils is not installed, or another session of this process uses the device.
            EnvironmentLost: The server or the device does not answer.
        """
        if self._open:
            return
        key = (self.host, self.port, self.serial)
        if key in _in_use:
            raise ConfigError(f"{self} is used by another session; one device serves one session at a time")
        await self._beside(self._greet)
        _in_use.add(key)
        self._open = True

    async def ready(self) -> None:
        """See that the server and the device answer, and that the device has started, without taking it.

        Raises:
            EnvironmentLost: It is not ready.
        """
        await self._beside(self._greet)
        await self.wait(0.0)

    @property
    def in_use(self) -> bool:
        """Whether a session of this process uses it."""
        return (self.host, self.port, self.serial) in _in_use

    async def shell(self, command: str) -> str:
        """Run a command in the device's shell; what it prints, errors included.

        Raises:
            CommandFailed: It ends with another code than 0.
            EnvironmentLost: The device is gone, or the command takes too long.
        """
        printed = await self._ask(f"shell:{command}; echo {_EXIT}$?")
        output, mark, code = printed.decode("utf-8", "replace").replace("\r\n", "\n").rpartition(_EXIT)
        if not mark:
            raise EnvironmentLost(f"{self} was cut off while it ran {command.split()[0]}")
        if code.strip() != "0":
            raise CommandFailed(command, output)
        return output.rstrip("\n")

    async def output(self, command: str) -> bytes:
        """Run a command; the bytes that it prints, as they are, whether it fails or not."""
        return await self._ask(f"exec:{command}")

    async def root(self) -> None:
        """Restart adb's daemon on the device as root.

        Raises:
            CommandFailed: The device does not allow it.
        """
        said = (await self._ask("root:")).decode("utf-8", "replace").strip()
        if "cannot" in said:
            raise CommandFailed("adb root", said)
        if "already" not in said:
            await self.wait(self.seconds)

    async def wait(self, seconds: float) -> None:
        """Wait until the device has started and answers.

        Raises:
            EnvironmentLost: It has not within ``seconds``; the message says what was last wrong.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                if await self.shell("getprop sys.boot_completed") == "1":
                    return
                wrong = "it has not finished starting"
            except (EnvironmentLost, CommandFailed) as error:
                wrong = str(error)
            if time.monotonic() > end:
                raise EnvironmentLost(f"{self} is not ready after {seconds:g} seconds: {wrong}")
            await asyncio.sleep(_POLL)

    async def console(self, command: str, token: Path, seconds: float) -> str:
        """Run one command in its emulator's console, whose port its serial number holds; return the answer.

        The console loads snapshots (``avd snapshot load NAME``) and sets the place where the phone is.

        Args:
            command: One line.
            token: The file in which the emulator keeps the word that its console asks for.
            seconds: How long it may take.

        Raises:
            ConfigError: The device is no local emulator, and has no tunnel to one; or the console refuses the
                command or the word in ``token``.
            EnvironmentLost: It cannot be reached, or does not answer in time.
        """
        kind, _, port = self.serial.partition("-")
        if self._console is None and (kind != "emulator" or not port.isdecimal()):
            raise ConfigError(
                f"device {self.serial} has no emulator's console: snapshots and places need a device that "
                "`adb devices` lists as emulator-PORT"
            )
        if not command.isprintable():
            raise ConfigError(f"a command of the emulator's console is one line, not {command!r}")
        host, number = _host_and_port(self._console or f"{self.host}:{port}")
        try:
            return await asyncio.wait_for(_ask(host, number, command, token.expanduser()), seconds)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            said = str(error) or f"no answer within {seconds:g} seconds"
            raise EnvironmentLost(f"the emulator's console at {host}:{number} is lost: {said}") from None

    def close(self) -> None:
        """Leave the device to others. A command that still runs ends by itself, at its deadline."""
        if self._open:
            _in_use.discard((self.host, self.port, self.serial))
            self._open = False
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __str__(self) -> str:
        return f"device {self.serial} (adb server {self.host}:{self.port})"

    async def _ask(self, service: str) -> bytes:
        return await self._beside(lambda: self._talk(service))

    async def _beside(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the device's thread. Sockets keep the deadline; a second one guards the thread."""
        if self._closed:
            raise EnvironmentLost(f"{self} was closed")
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._threads, work), 2 * self.seconds + 1)
        except TimeoutError:
            raise EnvironmentLost(f"{self} did not answer within {self.seconds:g} seconds") from None

    def _adb(self) -> Any:
        """adbutils' client, where something listens: else it would start a server of its own."""
        with needs("Android devices need adbutils", "agents"):
            import adbutils
        try:
            socket.create_connection((self.host, self.port), timeout=min(self.seconds, 3.0)).close()
        except OSError as error:
            raise EnvironmentLost(
                f"no adb server at {self.host}:{self.port} ({error}); start it with `adb start-server`"
            ) from None
        return adbutils.AdbClient(self.host, self.port, socket_timeout=self.seconds)

    def _greet(self) -> None:
        version = self._guarded(lambda: self._adb().server_version())
        if version < OLDEST_SERVER:
            raise EnvironmentLost(
                f"the adb server at {self.host}:{self.port} speaks version {version}; {OLDEST_SERVER} or "
                "newer is needed: update platform-tools, then `adb kill-server` and `adb start-server`"
            )
        state = self._guarded(lambda: self._adb().device(self.serial).get_state())
        if state != "device":
            raise EnvironmentLost(f"{self} is {state}; start it, and let this computer debug it")

    def _talk(self, service: str) -> bytes:
        """Send one request to the device and read until it closes the connection."""
        end = time.monotonic() + self.seconds

        def talk() -> bytes:
            output = bytearray()
            device = self._adb().device(self.serial)
            with device.open_transport(timeout=self.seconds) as connection:
                connection.send_command(service)
                connection.check_okay()
                while True:
                    connection.conn.settimeout(max(end - time.monotonic(), 0.001))
                    if not (piece := connection.recv(2**16)):
                        return bytes(output)
                    output += piece
                    if len(output) > MOST_OUTPUT:
                        raise EnvironmentLost(f"{self} printed more than {MOST_OUTPUT:,} bytes")

        return self._guarded(talk)

    def _guarded(self, talk: Callable[[], T]) -> T:
        """``talk()``, with what adbutils raises as a loss."""
        try:
            return talk()
        except (ConfigError, EnvironmentLost):
            raise
        except Exception as error:
            import adbutils

            known = (adbutils.AdbError, OSError, EOFError, ValueError, AssertionError, struct.error)
            if not isinstance(error, known):
                raise
            said = re.sub(r"\s+", " ", str(error)) or type(error).__name__
            if isinstance(error, TimeoutError | adbutils.AdbTimeout):
                said = "it did not answer in time"
            raise EnvironmentLost(f"{self} is lost: {said}; `adb devices` lists what is there") from None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)  # IPv6's colons may stand in brackets


async def _ask(host: str, port: int, command: str, token: Path) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        greeting = await _answer(reader, "the greeting")
        if "Authentication required" in greeting:
            try:
                word = token.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigError(
                    f"the emulator's console wants the word in {token}: {error.strerror}"
                ) from None
            writer.write(f"auth {word}\r\n".encode())
            await _answer(reader, f"the word in {token}")
        writer.write(f"{command}\r\n".encode())
        return await _answer(reader, command)
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, command: str) -> str:
    """Return the console's lines before ``OK``."""
    lines: list[str] = []
    while True:
        line = (await reader.readuntil(b"\n")).decode("utf-8", "replace").strip()
        if line == "OK":
            return "\n".join(lines)
        if line.startswith("KO"):
            raise ConfigError(f"the emulator's console refuses {command!r}: {line[2:].lstrip(': ')}")
        lines.append(line)


PACKAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")
"""The form of a package's name."""

KNOWN = {
    "bluecoins": "com.rammigsoftware.bluecoins",
    "calendar": "com.skuld.calendario",
    "cantook": "com.aldiko.android",
    "chrome": "com.android.chrome",
    "clock": "com.google.android.deskclock",
    "contacts": "com.google.android.contacts",
    "gmail": "com.google.android.gm",
    "maps.me": "com.mapswithme.maps.pro",
    "map.me": "com.mapswithme.maps.pro",
    "pi music player": "com.Project100Pi.themusicplayer",
    "settings": "com.android.settings",
    "setting": "com.android.settings",
    "youtube": "com.google.android.youtube",
    "zoom": "us.zoom.videomeetings",
}
"""The apps of AndroidLab and some that most phones have, in lower case."""


class Apps:
    """Which package an app's name means.

    Args:
        more: Packages by further names, which win over `KNOWN`.
    """

    def __init__(self, more: Mapping[str, str]) -> None:
        self._known = {_plain(name): package for name, package in {**KNOWN, **more}.items()}
        self._names = sorted({**KNOWN, **more})

    def package(self, name: str) -> str | None:
        """The package that a name means: a known app's, or the name itself where it is one; else None."""
        if found := self._known.get(_plain(name)):
            return found
        return name if PACKAGE.fullmatch(name) else None

    def like(self, name: str) -> list[str]:
        """Known names, those most like ``name`` first, a few."""
        close = difflib.get_close_matches(name[:200].lower(), self._names, n=3)
        return (close + [known for known in self._names if known not in close])[:12]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


ADBKEYBOARD = "com.android.adbkeyboard"
KEYBOARD = f"{ADBKEYBOARD}/.AdbIME"
"""The input method of the app ADBKeyboard, which types what broadcasts say."""
HOLD_MS, SWIPE_MS = 1000, 400
"""How long a finger is held, and how long it moves, as in AndroidLab."""
MOST_DELETED = 100
"""Characters of a field that keys delete, as in AndroidLab; ADBKeyboard clears longer ones."""

_MOVE_END, _DELETE = "123", "67"


class Hands:
    """Uses a device: fingers, keys, texts, apps.

    Args:
        device: The device.
        keyboard: How texts are typed.
        apps: Names of apps.
    """

    def __init__(self, device: AdbDevice, keyboard: Literal["adbkeyboard", "input"], apps: Apps) -> None:
        self.device, self.keyboard, self.apps = device, keyboard, apps

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

    async def do(self, action: tools.ScreenAction, size: tuple[int, int]) -> None:
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
        # Without --pct-syskeys 0 monkey refuses devices without hardware keys.
        command = f"monkey --pct-syskeys 0 -p {shlex.quote(package)} -c android.intent.category.LAUNCHER 1"
        said = await self.device.shell(command)
        if "No activities found" in said or "monkey aborted" in said:
            raise CommandFailed(command, said)

    async def _do(self, action: tools.ScreenAction, size: tuple[int, int]) -> None:
        match action:
            case tools.Look():
                pass
            case tools.WaitFor(seconds):
                await asyncio.sleep(seconds)
            case tools.Tap(box):
                x, y = box.centre
                await self.device.shell(f"input tap {x} {y}")
            case tools.LongPress(box):
                x, y = box.centre
                await self.device.shell(f"input swipe {x} {y} {x} {y} {HOLD_MS}")
            case tools.Swipe(box):
                (x, y), (to_x, to_y) = box.centre, action.end(size)
                await self.device.shell(f"input swipe {x} {y} {to_x} {to_y} {SWIPE_MS}")
            case tools.PressKey(key):
                await self.device.shell(f"input keyevent KEYCODE_{key.upper()}")
            case tools.TypeText(text):
                await self._type(text)
            case tools.LaunchApp(app):
                if (package := self.apps.package(app)) is None:
                    known = ", ".join(self.apps.like(app))
                    raise ToolError(f"no app is known as {short_name(app)}; known are {known}")
                await self.open(package)

    async def _type(self, text: str) -> None:
        """Replace what is in the field that has the focus, then press Enter."""
        if self.keyboard == "input" and not (text.isascii() and text.isprintable()):
            raise ToolError("this phone's keyboard types printable ASCII characters only")
        if self.keyboard == "adbkeyboard":
            # A broadcast that nothing hears is reported as completed, too.
            method = await self.device.shell("settings get secure default_input_method")
            if not method.startswith(f"{ADBKEYBOARD}/"):
                raise ToolError(
                    f"the phone's keyboard is {short_name(method)}, through which nothing can be typed"
                )
        deletes = " ".join([_DELETE] * MOST_DELETED)
        await self.device.shell(f"input keyevent {_MOVE_END} {deletes}")
        if text and self.keyboard == "input":
            # `input text` takes %s for a space.
            parts = [part.replace(" ", "%s") for part in text.split("%s")]
            for number, part in enumerate(parts):
                typed = [part, *(["%", "s"] if number + 1 < len(parts) else [])]
                for piece in filter(None, typed):
                    await self.device.shell(f"input text {shlex.quote(piece)}")
        elif self.keyboard == "adbkeyboard":
            coded = base64.b64encode(text.encode()).decode()
            for message in ("ADB_CLEAR_TEXT", f"ADB_INPUT_B64 --es msg {shlex.quote(coded)}"):
                said = await self.device.shell(f"am broadcast -p {ADBKEYBOARD} -a {message}")
                if "Broadcast completed" not in said:
                    raise CommandFailed("am broadcast", said)
        await self.device.shell("input keyevent KEYCODE_ENTER")
