"""Settings of Android devices."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from selfverify.agents.android.device import PACKAGE
from selfverify.agents.tools import Address
from selfverify.core.config import Config


def _address(given: str | None) -> str | None:
    host, _, port = (given or ":").rpartition(":")
    if given is not None and (not host or not port.isdecimal() or not 0 < int(port) < 65536):
        raise ValueError("it must be HOST:PORT")
    return given


class AndroidResetConfig(Config):
    """Settings that make every session of a task begin alike."""

    how: Literal["snapshot", "clear", "none"]
    """``snapshot`` loads an emulator's snapshot; only this brings back all that a session has changed.
    ``clear`` deletes the data of the task's app (``pm clear``). ``none`` keeps what is there."""
    snapshot: str = Field("", max_length=100, pattern=r"^[\w.-]*$")
    """Name of the snapshot that ``how: snapshot`` loads."""
    start: Literal["app", "home"] = "app"
    """Where a session begins: in the task's app, opened anew, or on the home screen."""
    root: bool = False
    """Restart adb's daemon as root first, which setting date and locale needs."""
    date: str | None = None
    """The phone's date, such as ``2024-05-10 12:00:00``, AndroidLab's; null leaves the clock alone."""
    real_time_for: tuple[str, ...] = ()
    """Apps (as in the tasks' ``app``) that keep the true date; in AndroidLab ``map.me`` does."""
    locale: str | None = Field(None, pattern=r"^[a-zA-Z]{2,3}(-[A-Za-z0-9]{2,8})*$")
    """The system's language, such as ``en-US``. Where it differs it is set, and the phone starts anew."""
    place: tuple[float, float] | None = None
    """Longitude and latitude of an emulator."""
    same_first_screen: bool | None = None
    """Whether all sessions of a task must begin with the same screen; else the environment counts as lost.
    null: where resets load a snapshot."""
    console_token: Path = Path("~/.emulator_console_auth_token")
    """The file in which an emulator keeps the word that its console asks for, as for snapshots and places."""
    boot_seconds: float = Field(120.0, gt=0)
    """How long a phone may take to start."""

    @field_validator("date")
    @classmethod
    def _is_a_date(cls, date: str | None) -> str | None:
        if date is not None:
            datetime.strptime(date, "%Y-%m-%d %H:%M:%S")
        return date

    @property
    def compares(self) -> bool:
        """Whether the first screens of a task's sessions are compared."""
        return self.how == "snapshot" if self.same_first_screen is None else self.same_first_screen

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.how == "snapshot") != bool(self.snapshot):
            raise ValueError("how=snapshot needs `snapshot`, its name; other ways of resetting take none")
        return self


class AndroidConfig(Config):
    """How devices are used."""

    reset: AndroidResetConfig
    """How a session begins."""
    server: str = "127.0.0.1:5037"
    """Host and port of the adb server."""
    observations: Literal["xml", "png", "both", "either"] = "xml"
    """The form of screens for the agent: in words, as a picture, or both; ``either`` is a picture where
    uiautomator gives no words, after all tries."""
    accessibility: tuple[str, ...] = ()
    """Packages whose screens AndroidLab's accessibility app describes, because uiautomator does it poorly:
    Maps.me and Pi Music. The reset switches the app's service on."""
    first_screen: Literal["asked", "given"] = "asked"
    """``asked``: a session begins without a screen, and the agent calls ``get_current_xml`` (SmartSnap).
    ``given``: it begins with the first screen."""
    address: Address = "bounds"
    """How calls name a place: by coordinates (as released), or by elements' ids."""
    steps: int = Field(30, ge=1)
    """Calls that a session may make; the last one is answered as truncated. SmartSnap has 30."""
    keyboard: Literal["adbkeyboard", "input"] = "adbkeyboard"
    """How texts are typed. The app ADBKeyboard types anything; Android's own ``input`` types ASCII only."""
    apps: dict[str, str] = {}
    """Packages by further names of apps, for ``launch``."""
    allowed: tuple[str, ...] = ()
    """Packages that may be used on a real device; an emulator needs none. See `AndroidEnvironment`."""
    command_seconds: float = Field(20.0, gt=0)
    """How long one command to the device may take."""
    settle_seconds: float = Field(6.0, ge=0)
    """After a call, how long to wait for the screen to stop changing (AndroidWorld waits as long)."""
    settle_pause: float = Field(0.5, ge=0)
    """Seconds between two looks at a screen that may still change."""
    traces: Path | None = None
    """Folder for traces in AndroidLab's form, one folder in it for each session; null writes none."""

    _server_is_an_address = field_validator("server")(_address)

    @field_validator("allowed")
    @classmethod
    def _are_packages(cls, allowed: tuple[str, ...]) -> tuple[str, ...]:
        for package in allowed:
            if not PACKAGE.fullmatch(package):
                raise ValueError(f"{package!r} is no package, such as com.android.settings")
        return allowed


class AndroidTaskConfig(AndroidConfig):
    """One device and how it is used."""

    serial: str = Field(min_length=1)
    """The device's serial number, as ``adb devices`` lists it."""
    console: str | None = None
    """Where a tunnel leads to its emulator's console, as HOST:PORT; null: on the host of the adb server."""

    _console_is_an_address = field_validator("console")(_address)
