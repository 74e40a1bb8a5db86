"""The console of an Android emulator: loads snapshots and sets the place where the phone is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import ConfigError


def console_port(serial: str) -> int:
    """The port of an emulator's console, which its serial number holds.

    Raises:
        ConfigError: The device is no local emulator.
    """
    kind, _, port = serial.partition("-")
    if kind != "emulator" or not port.isdecimal():
        raise ConfigError(
            f"device {serial} has no emulator's console: snapshots and places need a device that "
            "`adb devices` lists as emulator-PORT"
        )
    return int(port)


async def ask_console(host: str, port: int, command: str, token: Path, seconds: float) -> str:
    """Run one command in the console, such as ``avd snapshot load NAME``, and return what it says.

    Args:
        host: Where the emulator runs.
        port: Its console's port.
        command: One line.
        token: The file in which the emulator keeps the word that its console asks for.
        seconds: How long it may take.

    Raises:
        ConfigError: The console refuses the command or the word in ``token``.
        EnvironmentLost: It cannot be reached, or does not answer in time.
    """
    if not command.isprintable():
        raise ConfigError(f"a command of the emulator's console is one line, not {command!r}")
    try:
        return await asyncio.wait_for(_ask(host, port, command, token.expanduser()), seconds)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        said = str(error) or f"no answer within {seconds:g} seconds"
        raise EnvironmentLost(f"the emulator's console at {host}:{port} is lost: {said}") from None


async def _ask(host: str, port: int, command: str, token: Path) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        greeting = await _answer(reader, "the greeting")
        if "Authentication required" in greeting:
            try:
                word = token.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigError(
                    f"the emulator's console asks for the word in {token}: {error.strerror}"
                ) from None
            writer.write(f"auth {word}\r\n".encode())
            await _answer(reader, f"the word in {token}")
        writer.write(f"{command}\r\n".encode())
        return await _answer(reader, command)
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, command: str) -> str:
    """What stands before ``OK``."""
    lines: list[str] = []
    while True:
        line = (await reader.readuntil(b"\n")).decode("utf-8", "replace").strip()
        if line == "OK":
            return "\n".join(lines)
        if line.startswith("KO"):
            raise ConfigError(f"the emulator's console refuses {command!r}: {line[2:].lstrip(': ')}")
        lines.append(line)
