"""Resets that hold, and those that do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbutils")

from agents.android.fake_adb import Server, adb_server, emulator_console
from agents.android.phones import HOME, NOTES, SETTINGS, Phone
from selfverify.agents.android.config import AndroidTaskConfig
from selfverify.agents.android.environment import AndroidEnvironment, FirstScreens
from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import ConfigError

TASK = {"task_id": "notes_1", "instruction": "Write.", "app": "Notes", "package": NOTES}


def environment(server: Server, first: FirstScreens | None = None, **reset: Any) -> AndroidEnvironment:
    values = {
        "serial": next(iter(server.phones)), "server": server.address, "reset": {"how": "none", **reset},
        "settle_pause": 0.0, "settle_seconds": 0.0, "command_seconds": 5.0, "first_screen": "given",
    }  # fmt: skip
    return AndroidEnvironment(AndroidTaskConfig.model_validate(values), first_screens=first)


def begin(made: AndroidEnvironment, task: dict[str, Any] = TASK) -> str:
    """The first screen of a session."""

    async def run() -> str:
        try:
            return (await made.reset(task, 0)).text
        finally:
            await made.close()

    return asyncio.run(run())


def test_clear_forgets_what_the_app_has_kept(server: Server, phone: Phone) -> None:
    """It is stopped, cleared and opened anew."""
    phone.notes, phone.field = ["from before"], ""
    assert "from before" not in begin(environment(server, how="clear"))
    order = [c.split(";")[0].split(" ")[0:2] for c in phone.commands]
    assert order.index(["am", "force-stop"]) < order.index(["pm", "clear"]) < order.index(["monkey", "-p"])
    phone.notes = ["from before"]
    assert "from before" in begin(environment(server))


def test_sessions_begin_where_they_are_told_to(server: Server) -> None:
    """In the app, or on the home screen."""
    assert begin(environment(server)).startswith(f'App "{NOTES}"')
    assert begin(environment(server, start="home")).startswith(f'App "{HOME}"')


def test_another_first_screen_is_a_loss(server: Server, phone: Phone) -> None:
    """Sessions that begin unlike cannot be compared; other tasks have their own first screens."""
    first = FirstScreens()
    begin(environment(server, first))
    begin(environment(server, first))
    phone.notes = ["left behind"]
    with pytest.raises(EnvironmentLost, match=r"task notes_1: .* first screen differs"):
        begin(environment(server, first))
    begin(environment(server, first), {**TASK, "task_id": "notes_2"})
    begin(environment(server, first, same_first_screen=False))


def test_another_app_in_front_is_a_loss(server: Server, phone: Phone) -> None:
    """Such as a dialog that asks for permission."""
    phone.on_command = lambda c: setattr(phone, "focus", SETTINGS) if "dumpsys" in c else None
    with pytest.raises(EnvironmentLost, match=f"{SETTINGS} is in front, not {NOTES}"):
        begin(environment(server))
    phone.on_command = lambda c: setattr(phone, "focus", None) if "dumpsys" in c else None
    with pytest.raises(EnvironmentLost, match="nothing is in front"):
        begin(environment(server))


def test_the_date_is_set_and_checked(server: Server, phone: Phone) -> None:
    """Only root may set it; the network's time is switched off; some apps keep the true date."""
    date = "2024-05-10 12:00:00"
    with pytest.raises(EnvironmentLost, match=r"does not hold: .*cannot set date"):
        begin(environment(server, date=date))
    begin(environment(server, date=date, root=True, real_time_for=["Notes"]))
    assert phone.now == "2026-11-22 10:00:00"
    begin(environment(server, date=date, root=True))
    assert phone.now == date and phone.settings["global auto_time"] == "0"
    phone.may_be_root = False
    with pytest.raises(EnvironmentLost, match="adbd cannot run as root"):
        begin(environment(server, root=True))


def test_a_date_that_does_not_hold_is_a_loss(server: Server, phone: Phone) -> None:
    """The clock is read back."""
    phone.on_command = lambda c: setattr(phone, "now", "2026-11-22 10:00:00") if "date '+" in c else None
    with pytest.raises(EnvironmentLost, match="the clock shows 2026-11-22 10:00:00, not 2024-05-10"):
        begin(environment(server, date="2024-05-10 12:00:00", root=True))


def test_the_locale_is_set_and_checked(server: Server, phone: Phone) -> None:
    """Where it is right already nothing is done; else the system starts anew."""
    begin(environment(server, locale="en-US"))
    assert not any("stop; start" in c for c in phone.commands)
    with pytest.raises(EnvironmentLost, match="the language is en-US, not fr-FR"):
        begin(environment(server, locale="fr-FR"))
    begin(environment(server, locale="fr-FR", root=True))
    assert phone.properties["persist.sys.locale"] == "fr-FR"


def test_no_adbkeyboard_is_a_loss(server: Server, phone: Phone) -> None:
    """Else texts would be lost without a word."""
    phone.adbkeyboard = False
    with pytest.raises(EnvironmentLost, match=r"has no ADBKeyboard .*keyboard: input"):
        begin(environment(server))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def test_snapshots_bring_everything_back(phone: Phone, token: Path) -> None:
    """Through the emulator's console; the device goes away meanwhile and is waited for."""
    clean: dict[str, Any] = {}

    def load(name: str) -> None:
        assert name == "start"
        vars(phone).update(clean, notes=[], commands=phone.commands, state="offline")

    with emulator_console("secret", load) as running:
        serial = f"emulator-{running.port}"
        with adb_server({serial: phone}) as server:
            clean.update(vars(phone))

            async def run() -> str:
                made = environment(
                    server, how="snapshot", snapshot="start", console_token=token, place=(-122.156, 37.438)
                )
                phone.notes.append("from before")
                reset = asyncio.create_task(made.reset(TASK, 0))
                while phone.state != "offline" and not reset.done():
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                phone.state = "device"
                text = (await reset).text
                await made.close()
                return text

            assert "from before" not in asyncio.run(run())
        assert running.told == [
            "auth secret",
            "avd snapshot load start",
            "auth secret",
            "geo fix -122.156 37.438",
        ]


@pytest.mark.parametrize("how", ["unknown snapshot", "wrong word", "no word", "no console", "no emulator"])
def test_snapshots_that_cannot_be_loaded(phone: Phone, token: Path, how: str) -> None:
    """Each says why."""
    messages = {
        "unknown snapshot": (ConfigError, "refuses 'avd snapshot load start': no such snapshot"),
        "wrong word": (ConfigError, "authentication token does not match"),
        "no word": (ConfigError, "asks for the word in .*token: No such file"),
        "no console": (EnvironmentLost, "console at 127.0.0.1:9 is lost"),
        "no emulator": (ConfigError, "device R58M has no emulator's console"),
    }
    kind, message = messages[how]
    with emulator_console("other" if how == "wrong word" else "secret") as running:
        running.answers["avd snapshot load start"] = "KO: no such snapshot"
        if how == "no word":
            token.unlink()
        serial = {"no console": "emulator-9", "no emulator": "R58M"}.get(how, f"emulator-{running.port}")
        with adb_server({serial: phone}) as server, pytest.raises(kind, match=message):
            begin(environment(server, how="snapshot", snapshot="start", console_token=token))


def test_a_phone_that_does_not_start_is_a_loss(phone: Phone, token: Path) -> None:
    """After the time that it may take."""
    with (
        emulator_console(
            "secret", lambda name: phone.properties.update({"sys.boot_completed": ""})
        ) as running,
        adb_server({f"emulator-{running.port}": phone}) as server,
        pytest.raises(EnvironmentLost, match=r"not ready after 0.2 seconds: it has not finished starting"),
    ):
        begin(environment(server, how="snapshot", snapshot="start", console_token=token, boot_seconds=0.2))


def test_a_reset_begins_anew_in_the_same_session(server: Server, phone: Phone) -> None:
    """Rounds count from 0, and the former session's end is forgotten."""

    async def run() -> None:
        made = environment(server, how="clear")
        await made.reset(TASK, 0)
        await made.submitted("x")
        again = await made.reset(TASK, 1)
        assert again.round == 0 and again.text.startswith("App")
        assert (await made.step(Call("back"))).round == 1
        await made.close()

    asyncio.run(run())
