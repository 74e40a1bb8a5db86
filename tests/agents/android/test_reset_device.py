"""Resets that hold, and those that do not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbutils")

from agents.android.conftest import config, play
from agents.android.fake_adb import Server, adb_server, emulator_console
from agents.android.phones import HOME, NOTES, SETTINGS, Phone
from selfverify.agents.android.environment import AndroidEnvironment, FirstScreens
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError

TASK = {"task_id": "notes_1", "instruction": "Write.", "app": "Notes", "package": NOTES}


def environment(
    server: Server, first: FirstScreens | None = None, console: str | None = None, **reset: Any
) -> AndroidEnvironment:
    given = config(server, reset={"how": "none", **reset}, first_screen="given", console=console)
    return AndroidEnvironment(given, first_screens=first)


def begin(made: AndroidEnvironment, task: dict[str, Any] = TASK) -> str:
    """The first screen of a session."""
    return play(made, task)[0].text


def test_clear_forgets_what_the_app_has_kept(server: Server, phone: Phone) -> None:
    """It is stopped, cleared and opened anew."""
    phone.notes, phone.field = ["from before"], ""
    assert "from before" not in begin(environment(server, how="clear"))
    order = [c.split(";")[0].split(" ")[0:2] for c in phone.commands]
    steps = [order.index(one) for one in (["am", "force-stop"], ["pm", "clear"], ["monkey", "--pct-syskeys"])]
    assert steps == sorted(steps)
    phone.notes = ["from before"]
    kept = begin(environment(server))
    assert kept.startswith(f'App "{NOTES}"') and "from before" in kept
    assert begin(environment(server, start="home")).startswith(f'App "{HOME}"')


def test_another_first_screen_is_a_loss(server: Server, phone: Phone) -> None:
    """Sessions that begin unlike cannot be compared; other tasks have their own first screens."""
    first = FirstScreens()
    for notes in (["odd"], [], []):  # one odd first screen is no reference
        phone.notes = notes
        begin(environment(server, first, same_first_screen=True))
    phone.notes = ["left behind"]
    with pytest.raises(EnvironmentLost, match=r"task notes_1: .* first screen differs"):
        begin(environment(server, first, same_first_screen=True))
    begin(environment(server, first, same_first_screen=True), {**TASK, "task_id": "notes_2"})
    begin(environment(server, first))  # without a snapshot nothing says that screens are alike
    assert not any(FirstScreens().differs("x", words) for words in "abcd")


def test_another_app_in_front_costs_one_more_reset_and_then_is_a_loss(server: Server, phone: Phone) -> None:
    """Such as a dialog of an app that hangs, or that asks for permission."""
    front = iter([SETTINGS, NOTES])
    phone.on_command = lambda c: setattr(phone, "focus", next(front, NOTES)) if "dumpsys" in c else None
    assert begin(environment(server)).startswith(f'App "{NOTES}"')
    for app, said in ((SETTINGS, f"{SETTINGS} is in front, not {NOTES}"), (None, "nothing is in front")):
        phone.on_command = lambda c, app=app: setattr(phone, "focus", app) if "dumpsys" in c else None  # type: ignore[misc]
        with pytest.raises(EnvironmentLost, match=said):
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
    phone.on_command = lambda c: setattr(phone, "now", "2026-11-22 10:00:00") if "date '+" in c else None
    with pytest.raises(EnvironmentLost, match="the clock shows 2026-11-22 10:00:00, not 2024-05-10"):
        begin(environment(server, date=date, root=True))
    phone.may_be_root = False
    with pytest.raises(EnvironmentLost, match="adbd cannot run as root"):
        begin(environment(server, root=True))


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
        threading.Timer(0.1, lambda: setattr(phone, "state", "device")).start()

    with emulator_console("secret", load) as running:
        serial = f"emulator-{running.port}"
        with adb_server({serial: phone}) as server:
            clean.update(vars(phone))

            phone.notes.append("from before")
            back = {"how": "snapshot", "snapshot": "start", "console_token": token}
            assert "from before" not in begin(environment(server, **back, place=(-122.156, 37.438)))
        assert running.told[::2] == ["auth secret"] * 2
        assert running.told[1::2] == ["avd snapshot load start", "geo fix -122.156 37.438"]
        with adb_server({"R58M": phone}) as server:  # through a tunnel
            begin(environment(server, console=f"127.0.0.1:{running.port}", **back))
        assert running.told[4:] == ["auth secret", "avd snapshot load start"]


@pytest.mark.parametrize("how", ["unknown snapshot", "wrong word", "no word", "no console", "no emulator"])
def test_snapshots_that_cannot_be_loaded(phone: Phone, token: Path, how: str) -> None:
    """Each says why."""
    messages = {
        "unknown snapshot": (ConfigError, "refuses 'avd snapshot load start': no such snapshot"),
        "wrong word": (ConfigError, "authentication token does not match"),
        "no word": (ConfigError, "wants the word in .*token: No such file"),
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
    load = lambda name: phone.properties.update({"sys.boot_completed": ""})  # noqa: E731
    back = {"how": "snapshot", "snapshot": "start", "console_token": token, "boot_seconds": 0.2}
    late = r"not ready after 0.2 seconds: it has not finished starting"
    with emulator_console("secret", load) as running:
        name = f"emulator-{running.port}"
        with adb_server({name: phone}) as server, pytest.raises(EnvironmentLost, match=late):
            begin(environment(server, **back))


def test_a_reset_begins_anew_in_the_same_session(server: Server) -> None:
    """Rounds count from 0, and the former session's end is forgotten."""
    made = environment(server, how="clear")
    again: list[StepResult] = []

    async def reset() -> None:
        await made.submitted("x")
        again.append(await made.reset(TASK, 1))

    assert play(made, TASK, reset, Call("back"))[1].round == 1
    assert again[0].round == 0 and again[0].text.startswith("App")
