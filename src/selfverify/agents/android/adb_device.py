"""One Android device behind an adb server: commands with deadlines, beside the event loop."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import ConfigError

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
        command: What was run.
        output: What it has printed.
    """

    def __init__(self, command: str, output: str) -> None:
        super().__init__(
            f"{command.split()[0]} failed: {' '.join(output.split())[:300] or 'it said nothing'}"
        )
        self.output = output


class AdbDevice:
    """A device; one session may use it at a time.

    The adb server is spoken to directly. It is never started, nor is an ``adb`` program run: two programs of
    different versions stop each other's servers.

    Args:
        serial: As ``adb devices`` lists it.
        host: Where the adb server runs.
        port: Its port.
        seconds: How long a command may take.
    """

    def __init__(self, serial: str, host: str = "127.0.0.1", port: int = 5037, seconds: float = 20.0) -> None:
        self.serial, self.host, self.port, self.seconds = serial, host, port, seconds
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
        await self._beside(self._greet, self.seconds)
        _in_use.add(key)
        self._open = True

    async def shell(self, command: str, seconds: float | None = None) -> str:
        """Run a command in the device's shell; what it prints, errors included.

        Raises:
            CommandFailed: It ends with another code than 0.
            EnvironmentLost: The device is gone, or the command takes too long.
        """
        printed = await self._ask(f"shell:{command}; echo {_EXIT}$?", seconds)
        output, mark, code = printed.decode("utf-8", "replace").replace("\r\n", "\n").rpartition(_EXIT)
        if not mark:
            raise EnvironmentLost(f"{self} was cut off while it ran {command.split()[0]}")
        if code.strip() != "0":
            raise CommandFailed(command, output)
        return output.rstrip("\n")

    async def output(self, command: str, seconds: float | None = None) -> bytes:
        """Run a command; the bytes that it prints, as they are, whether it fails or not."""
        return await self._ask(f"exec:{command}", seconds)

    async def root(self) -> None:
        """Restart adb's daemon on the device as root.

        Raises:
            CommandFailed: The device does not allow it.
        """
        said = (await self._ask("root:", None)).decode("utf-8", "replace").strip()
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

    def close(self) -> None:
        """Leave the device to others. A command that still runs ends by itself, at its deadline."""
        if self._open:
            _in_use.discard((self.host, self.port, self.serial))
            self._open = False
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __str__(self) -> str:
        return f"device {self.serial} (adb server {self.host}:{self.port})"

    async def _ask(self, service: str, seconds: float | None) -> bytes:
        limit = self.seconds if seconds is None else seconds
        return await self._beside(lambda: self._talk(service, limit), limit)

    async def _beside(self, work: Callable[[], T], seconds: float) -> T:
        """Do ``work`` in the device's thread. Sockets keep the deadline; a second one guards the thread."""
        if self._closed:
            raise EnvironmentLost(f"{self} was closed")
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._threads, work), 2 * seconds + 1)
        except TimeoutError:
            raise EnvironmentLost(f"{self} did not answer within {seconds:g} seconds") from None

    def _adb(self, seconds: float) -> Any:
        """adbutils' client, where something listens: else it would start a server of its own."""
        try:
            import adbutils
        except ImportError:
            raise ConfigError("Android devices need adbutils: pip install 'selfverify[agents]'") from None
        try:
            socket.create_connection((self.host, self.port), timeout=min(seconds, 3.0)).close()
        except OSError as error:
            raise EnvironmentLost(
                f"no adb server at {self.host}:{self.port} ({error}); start it with `adb start-server`"
            ) from None
        return adbutils.AdbClient(self.host, self.port, socket_timeout=seconds)

    def _greet(self) -> None:
        version = self._guarded(lambda: self._adb(self.seconds).server_version())
        if version < OLDEST_SERVER:
            raise EnvironmentLost(
                f"the adb server at {self.host}:{self.port} speaks version {version}; {OLDEST_SERVER} or "
                "newer is needed: update platform-tools, then `adb kill-server` and `adb start-server`"
            )
        state = self._guarded(lambda: self._adb(self.seconds).device(self.serial).get_state())
        if state != "device":
            raise EnvironmentLost(
                f"{self} is {state}; it must be started and allow this computer to debug it"
            )

    def _talk(self, service: str, seconds: float) -> bytes:
        """Send one request to the device and read until it closes the connection."""
        end = time.monotonic() + seconds

        def talk() -> bytes:
            output = bytearray()
            with self._adb(seconds).device(self.serial).open_transport(timeout=seconds) as connection:
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
