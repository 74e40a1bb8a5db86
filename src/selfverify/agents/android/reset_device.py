"""A reset that holds: brings a device to where a task begins, and checks that it is there."""

from __future__ import annotations

import asyncio
import shlex
from datetime import datetime, timedelta

from selfverify.agents.android.adb_device import AdbDevice, CommandFailed
from selfverify.agents.android.android_settings import AndroidReset
from selfverify.agents.android.androidlab import AndroidTask
from selfverify.agents.android.console import ask_console, console_port
from selfverify.agents.android.hands import Hands
from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import DataError

CLOCK_SLACK = timedelta(minutes=2)
"""How far a phone's clock may be from the date that was set."""

_EMULATORS = frozenset(("goldfish", "ranchu"))


async def is_emulator(device: AdbDevice) -> bool:
    """Whether a device is an emulator, by what its system says."""
    said = await device.shell("getprop ro.kernel.qemu; getprop ro.boot.qemu; getprop ro.hardware")
    lines = said.split("\n")
    return "1" in lines[:2] or bool(_EMULATORS & set(lines))


async def reset_device(device: AdbDevice, hands: Hands, reset: AndroidReset, task: AndroidTask) -> None:
    """Carry out a reset.

    Raises:
        ConfigError: The emulator's console refuses, such as a snapshot that it does not know.
        DataError: The task's app is not known or not installed.
        EnvironmentLost: The device does not come back, or a step does not hold.
    """
    package = hands.apps.package(task.package) or hands.apps.package(task.app)
    if package is None:
        raise DataError(
            f"Android task {task.task_id}: neither its package {task.package!r} nor its app {task.app!r} is "
            "known; name the package in `apps`"
        )
    try:
        if reset.how == "snapshot":
            await _console(device, f"avd snapshot load {reset.snapshot}", reset)
            await device.wait(reset.boot_seconds)
        if reset.root:
            await device.root()
        if reset.locale is not None:
            await _set_locale(device, reset.locale, reset.boot_seconds)
        if reset.date is not None and task.app not in reset.real_time_for:
            await _set_date(device, reset.date)
        if reset.place is not None:
            await _console(device, f"geo fix {reset.place[0]} {reset.place[1]}", reset)
        await hands.choose_keyboard()
        await device.shell(f"am force-stop {shlex.quote(package)}")
        if reset.how == "clear":
            said = await device.shell(f"pm clear {shlex.quote(package)}")
            if "Success" not in said:
                raise CommandFailed(f"pm clear {package}", said)
        await device.shell("input keyevent KEYCODE_WAKEUP; input keyevent KEYCODE_HOME")
    except CommandFailed as error:
        raise EnvironmentLost(f"{device}, task {task.task_id}: the reset does not hold: {error}") from None
    if reset.start == "app":
        try:
            await hands.open(package)
        except CommandFailed as error:
            raise DataError(
                f"Android task {task.task_id}: app {package} cannot be opened on {device}: {error}; "
                "is it installed?"
            ) from None


async def _console(device: AdbDevice, command: str, reset: AndroidReset) -> None:
    port = console_port(device.serial)
    await ask_console(device.host, port, command, reset.console_token, reset.boot_seconds)


async def _set_date(device: AdbDevice, date: str) -> None:
    """Set the clock and read it back; a phone that follows the network's time would soon lose it again."""
    await device.shell(f"settings put global auto_time 0; date {shlex.quote(date)}")
    said = (await device.shell("date '+%Y-%m-%d %H:%M:%S'")).strip()
    try:
        off = datetime.strptime(said, "%Y-%m-%d %H:%M:%S") - datetime.strptime(date, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise CommandFailed("date", said) from None
    if abs(off) > CLOCK_SLACK:
        raise CommandFailed("date", f"the clock shows {said}, not {date}; only root may set it (reset.root)")


async def _set_locale(device: AdbDevice, locale: str, boot_seconds: float) -> None:
    """Set the system's language where it is another one, and start the system anew."""
    if await _locale(device) == locale:
        return
    await device.shell(f"setprop persist.sys.locale {locale}; setprop sys.boot_completed 0; stop; start")
    await asyncio.sleep(1)
    await device.wait(boot_seconds)
    if (now := await _locale(device)) != locale:
        raise CommandFailed(
            "setprop", f"the language is {now}, not {locale}; only root may set it (reset.root)"
        )


async def _locale(device: AdbDevice) -> str:
    said = await device.shell("getprop persist.sys.locale; getprop ro.product.locale")
    return next((line.strip() for line in said.split("\n") if line.strip()), "")
