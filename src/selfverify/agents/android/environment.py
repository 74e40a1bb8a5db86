"""An Android device as an environment, and the reset that brings it to where a task begins."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from selfverify.agents.android.androidlab import AndroidTask, Trace, device_question, read_task
from selfverify.agents.android.config import AndroidConfig, AndroidTaskConfig
from selfverify.agents.android.device import AdbDevice, Apps, CommandFailed, Hands
from selfverify.agents.android.screen import DESCRIBE, Capture, Viewer
from selfverify.agents.tools import LaunchApp, Look, PressKey, ScreenAction, ScreenTools, WaitFor
from selfverify.connectors.pool import Source
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify.tasks.tool_calls import ToolError

CLOCK_SLACK = timedelta(minutes=2)
"""How far a phone's clock may be from the date that was set."""


async def is_emulator(device: AdbDevice) -> bool:
    """Whether a device is an emulator, by what its system says."""
    said = await device.shell("getprop ro.kernel.qemu; getprop ro.boot.qemu; getprop ro.hardware")
    lines = said.split("\n")
    return "1" in lines[:2] or not {"goldfish", "ranchu"}.isdisjoint(lines)


async def reset_device(device: AdbDevice, hands: Hands, config: AndroidConfig, task: AndroidTask) -> None:
    """Bring a device to where a task begins, and check that it is there.

    Raises:
        ConfigError: The emulator's console refuses, such as a snapshot that it does not know.
        DataError: The task's app is not known or not installed.
        EnvironmentLost: The device does not come back, or a step does not hold.
    """
    reset = config.reset
    package = hands.apps.package(task.package) or hands.apps.package(task.app)
    if package is None:
        raise DataError(
            f"Android task {task.task_id}: neither its package {task.package!r} nor its app {task.app!r} is "
            "known; name the package in `apps`"
        )
    try:
        if reset.how == "snapshot":
            load = f"avd snapshot load {reset.snapshot}"
            await device.console(load, reset.console_token, reset.boot_seconds)
            await device.wait(reset.boot_seconds)
        if reset.root:
            await device.root()
        if reset.locale is not None:
            await _set_locale(device, reset.locale, reset.boot_seconds)
        if reset.date is not None and task.app not in reset.real_time_for:
            await _set_date(device, reset.date)
        if reset.place is not None:
            fix = f"geo fix {reset.place[0]} {reset.place[1]}"
            await device.console(fix, reset.console_token, reset.boot_seconds)
        await hands.choose_keyboard()
        if package in config.accessibility:
            await device.shell(DESCRIBE)
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
            absent = "; is it installed?" if "No activities found" in error.output else ""
            raise DataError(
                f"Android task {task.task_id}: app {package} cannot be opened on {device}: {error}{absent}"
            ) from None


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
        raise CommandFailed("setprop", f"the language is {now}, not {locale}; root may set it (reset.root)")


async def _locale(device: AdbDevice) -> str:
    said = await device.shell("getprop persist.sys.locale; getprop ro.product.locale")
    return next((line.strip() for line in said.split("\n") if line.strip()), "")


def adb_device(config: AndroidTaskConfig) -> AdbDevice:
    """The device of a config."""
    return AdbDevice(config.serial, config.server, config.command_seconds, config.console)


Confirm = Callable[[str], Awaitable[bool]]
"""Asks a person, or a policy of theirs, whether something may be done on a real device; in words."""

T = TypeVar("T")


class FirstScreens:
    """The first screens of each task, by which sessions are compared that are to begin alike.

    The reference is the majority of the first three, so that one odd screen spoils no others. Until it is
    known, and where all three differ, every screen passes.
    """

    def __init__(self) -> None:
        self._words: dict[str, list[str]] = {}

    def differs(self, task: str, words: str) -> bool:
        """Whether a session of this task has begun with another screen than most of its first three."""
        first = self._words.setdefault(task, [])
        if len(first) < 3:
            first.append(words)
        [(reference, count)] = Counter(first).most_common(1)
        return count > 1 and words != reference


class AndroidEnvironment(Environment):
    """One session after another on one device.

    An emulator may be used freely. On a real device (one that does not say that it is an emulator) three
    things hold: the reset and every call that does something is asked about first (``confirm``), only apps in
    ``config.allowed`` may be opened and used, and no screen of another app is shown or kept.

    Args:
        config: The device and how it is used.
        confirm: Asked before anything is done on a real device; without it a real device is refused.
        first_screens: Shared by environments whose sessions are compared, such as those of one group.
        told: Told after each reset why it has lost the device; empty where it has not.
    """

    def __init__(
        self,
        config: AndroidTaskConfig,
        confirm: Confirm | None = None,
        first_screens: FirstScreens | None = None,
        told: Callable[[str], None] = lambda lost: None,
    ) -> None:
        self.config, self.confirm, self.told = config, confirm, told
        self.first_screens = FirstScreens() if first_screens is None else first_screens
        self._tools = ScreenTools(config.address)
        self._device = adb_device(config)
        self._viewer = Viewer(self._device, config.settle_pause, config.accessibility)
        self._hands = Hands(self._device, config.keyboard, Apps(config.apps))
        self._real = False
        self._lost = ""
        self._task: AndroidTask | None = None
        self._view: Capture | None = None
        self._trace: Trace | None = None
        self._round = 0
        self._over = ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """The calls, with the schemas that SmartSnap released, without ``submit``."""
        return self._tools.schemas

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a task anew.

        Args:
            task: An `AndroidTask` as plain JSON.
            seed: Names the trace's folder; a device does nothing random.

        Raises:
            DataError: The task is wrong, or its app cannot be opened.
            ConfigError: The device is a real one without allowed apps or ``confirm``, or is refused.
            EnvironmentLost: The device is gone, or the reset does not hold.
        """
        wanted = read_task(task)
        try:
            first = await self._guarded(self._begin(wanted, seed))
        except EnvironmentLost as error:
            self.told(str(error))
            raise
        self.told("")
        return first

    async def step(self, call: Call) -> StepResult:
        if self._view is None:
            raise ConfigError("reset the environment before the first call")
        self._round += 1
        return await self._guarded(self._answer(call))

    async def submitted(self, message: str) -> None:
        """End the session's trace with the message."""
        if self._trace is not None:
            self._trace.finished(message)
        self._trace, self._over = None, "the session has ended: the work was handed in"

    async def state(self) -> dict[str, Any] | None:
        """The app in front, and what the device answers to the task's questions."""
        if self._task is None:
            return None
        return await self._guarded(self._facts(self._task))

    async def close(self) -> None:
        """Give the device back as it is."""
        self._device.close()
        self._lost = self._lost or f"{self._device} was closed"

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, unless the session is lost; a session that is cut off in the middle of work is
        lost, too."""
        if self._lost:
            work.close()
            raise EnvironmentLost(self._lost)
        try:
            return await work
        except (EnvironmentLost, asyncio.CancelledError) as error:
            cancelled = f"{self._device}: a call was cancelled while it was carried out"
            self._lost = str(error) if isinstance(error, EnvironmentLost) else cancelled
            self._device.close()
            raise

    async def _begin(self, task: AndroidTask, seed: int) -> StepResult:
        await self._device.open()
        await self._admit(task)
        self._task, self._round, self._over, self._trace = task, 0, "", None
        self._view = view = await self._first(task, again=not self._real)
        if self.config.traces is not None:
            self._trace = Trace(self.config.traces, task, seed)
            await asyncio.to_thread(self._trace.seen, view, await self._answers(task))
        return self._shown(view) if self.config.first_screen == "given" else StepResult(0, info=_info(view))

    async def _first(self, task: AndroidTask, again: bool) -> Capture:
        """Reset the device, twice where a dialog may have been in the way the first time."""
        await reset_device(self._device, self._hands, self.config, task)
        await self._viewer.measure()
        view = await self._settled()
        try:
            self._check_first(task, view)
        except EnvironmentLost:
            if not again:
                raise
            return await self._first(task, again=False)
        return view

    async def _admit(self, task: AndroidTask) -> None:
        """See that a real device may be used."""
        self._real = not await is_emulator(self._device)
        if not self._real:
            return
        if not self.config.allowed or self.confirm is None:
            raise ConfigError(
                f"{self._device} is a real device: list the packages that may be used (`allowed`) and pass "
                "`confirm`, which is asked before anything is done"
            )
        package = self._hands.apps.package(task.package) or self._hands.apps.package(task.app) or task.package
        if package not in self.config.allowed:
            raise ConfigError(f"task {task.task_id} uses {package}, which is not in `allowed`")
        reset = self.config.reset.model_dump(exclude_defaults=True)
        if not await self.confirm(f"reset {self._device} for task {task.task_id} of {package}: {reset}"):
            raise ConfigError(f"the reset of {self._device} was not confirmed")

    async def _answer(self, call: Call) -> StepResult:
        assert self._view is not None and self._task is not None
        if self._over:
            return StepResult(self._round, error=self._over)
        try:
            boxes = self._view.screen.boxes if self._view.screen is not None else {}
            action = self._tools.read(call, self._view.size, boxes)
            await self._allow(action)
            await self._hands.do(action, self._view.size)
        except ToolError as error:
            return self._limited(StepResult(self._round, error=str(error), info=_info(self._view)))
        if self._trace is not None and not isinstance(action, Look):
            self._trace.done(action)
        self._view = await (self._look() if isinstance(action, Look) else self._settled())
        if self._trace is not None:
            await asyncio.to_thread(self._trace.seen, self._view, await self._answers(self._task))
        return self._limited(self._shown(self._view))

    async def _allow(self, action: ScreenAction) -> None:
        """See that an action may be carried out on a real device."""
        if not self._real or isinstance(action, Look | WaitFor):
            return
        assert self._view is not None and self.confirm is not None
        front = self._view.focus.package
        if isinstance(action, LaunchApp):
            package = self._hands.apps.package(action.app)
            if package is not None and package not in self.config.allowed:
                raise ToolError(f"{package} may not be used on this phone")
        elif front not in self.config.allowed and not isinstance(action, PressKey):
            raise ToolError(f"{front or 'what is in front'} may not be used on this phone; go back or home")
        if not await self.confirm(f"{action} on {self._device}, in {front}"):
            raise ToolError("the phone's owner does not allow this")

    async def _look(self) -> Capture:
        kept, shown = self.config.traces is not None, self.config.observations
        words = kept or shown != "png"
        picture = True if kept or shown in ("png", "both") else None if shown == "either" else False
        if not self._real:
            return await self._viewer.look(words, picture)
        # Asked before and after: another app that comes to the front meanwhile is not shown.
        focus, view = await self._viewer.focus(), None
        if focus.package in self.config.allowed:
            view = await self._viewer.look(words, picture)
            focus = await self._viewer.focus()
        if view is not None and focus.package == view.focus.package:
            return view
        hidden = (f"{focus.package or 'what is in front'} may not be shown on this phone",)
        return Capture(focus, b"", None, None, b"", hidden, self._viewer.size)

    async def _settled(self) -> Capture:
        """The screen, as soon as two looks in a row see the same, or after the time for it."""
        end = time.monotonic() + self.config.settle_seconds
        view = await self._look()
        while time.monotonic() < end:
            await asyncio.sleep(self.config.settle_pause)
            before, view = view, await self._look()
            if view.same(before):
                break
        return view

    def _check_first(self, task: AndroidTask, view: Capture) -> None:
        reset = self.config.reset
        package = self._hands.apps.package(task.package) or self._hands.apps.package(task.app)
        if reset.start == "app" and view.focus.package != package:
            raise EnvironmentLost(
                f"{self._device}, task {task.task_id}: the reset does not hold: "
                f"{view.focus.package or 'nothing'} is in front, not {package}"
            )
        if reset.compares and view.words and self.first_screens.differs(task.task_id, view.words):
            raise EnvironmentLost(
                f"{self._device}, task {task.task_id}: the reset does not hold: the first screen differs "
                "from that of an earlier session; reset with a snapshot, or set same_first_screen: false"
            )

    async def _answers(self, task: AndroidTask) -> dict[str, str]:
        """The device's answers to a task's questions; ``ERROR`` where a command fails, as in AndroidLab."""
        answers = {}
        for query in task.queries:
            try:
                answers[query] = (await self._device.shell(device_question(query))).strip()
            except CommandFailed:
                answers[query] = "ERROR"
        return answers

    async def _facts(self, task: AndroidTask) -> dict[str, Any]:
        focus = await self._viewer.focus()
        return {"package": focus.package, "activity": focus.activity, "answers": await self._answers(task)}

    def _shown(self, view: Capture) -> StepResult:
        """Return the screen as the agent sees it."""
        words, pictures = self.config.observations != "png", self.config.observations in ("png", "both")
        pictures = pictures or (self.config.observations == "either" and view.screen is None)
        said = [view.words] if words and view.words else []
        text = "\n".join([*said, *(f"({why})" for why in view.lacking)])
        images = [view.picture] if pictures and view.picture is not None else []
        return StepResult(self._round, text, images, info=_info(view))

    def _limited(self, observation: StepResult) -> StepResult:
        """Return the observation, marked as truncated where the session has made all its calls."""
        if self._round >= self.config.steps:
            self._over = f"the session has ended after {self.config.steps} calls"
            observation.truncated = True
        return observation


def _info(view: Capture) -> dict[str, Any]:
    return {"package": view.focus.package, "activity": view.focus.activity, "size": list(view.size)}


FIRST_REST_S, LONGEST_REST_S = 30.0, 600.0
"""Seconds for which a device is left out after a failed reset; twice as long after each further one."""


class DeviceSource(Source):
    """One device of a pool. It is left out while it does not answer, and for a time after a failed reset.

    Args:
        config: The device and how it is used.
        confirm: See `AndroidEnvironment`.
        first_screens: See `AndroidEnvironment`.
    """

    def __init__(
        self, config: AndroidTaskConfig, confirm: Confirm | None, first_screens: FirstScreens
    ) -> None:
        super().__init__(f"{config.server}/{config.serial}", 1)
        self.config, self.confirm, self.first_screens = config, confirm, first_screens
        self._lost, self._failures, self._rests_until = "", 0, 0.0

    async def open(self) -> Environment:
        if self._lost:
            raise EnvironmentLost(self._lost)
        await self._check()
        return AndroidEnvironment(self.config, self.confirm, self.first_screens, self._told)

    async def healthy(self) -> bool:
        """Check the device. One in use is not asked: its session sees its faults."""
        if adb_device(self.config).in_use:
            return True
        if time.monotonic() < self._rests_until:
            return False
        try:
            await self._check()
        except EnvironmentLost:
            return False
        self._lost = ""
        return True

    async def _check(self) -> None:
        device = adb_device(self.config)
        try:
            await device.ready()
        finally:
            device.close()

    def _told(self, lost: str) -> None:
        self._lost, self._failures = lost, self._failures + 1 if lost else 0
        rest = min(FIRST_REST_S * 2 ** (self._failures - 1), LONGEST_REST_S)
        self._rests_until = time.monotonic() + rest if lost else 0.0
