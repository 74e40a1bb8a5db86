"""An Android device as an environment, through the real client and a server that speaks adb's protocol."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbutils")

from PIL import Image
from pydantic import ValidationError

from agents.android.conftest import SERIAL, config, play
from agents.android.fake_adb import Server, adb_server
from agents.android.hierarchies import SAID, hierarchy, view
from agents.android.phones import HOME, IME, NOTES, SECRET, SETTINGS, Phone, png
from selfverify.agents.android.config import AndroidTaskConfig
from selfverify.agents.android.device import AdbDevice
from selfverify.agents.android.environment import AndroidEnvironment
from selfverify.core.episode import Call, EnvironmentLost
from selfverify.core.errors import ConfigError, DataError, FileError
from tables import yaml_cases

TASK = {"task_id": "setting_1", "instruction": "Turn Wi-Fi on.", "app": "Settings", "package": SETTINGS}
NOTE = {"task_id": "notes_1", "instruction": "Write it down.", "app": "Notes", "package": NOTES}


def call(name: str, **arguments: Any) -> Call:
    return Call(name, arguments)


LOOK = call("get_current_xml")
TAP_SWITCH = call("tap", x1=900, y1=200, x2=1040, y2=280)
TAP_FIELD = call("tap", x1=40, y1=100, x2=1040, y2=200)


def test_a_session(server: Server, phone: Phone) -> None:
    """The paper's: nothing is shown at first, then each call shows the screen after it."""
    phone.wifi = True
    shown = play(AndroidEnvironment(config(server)), TASK, LOOK, TAP_SWITCH, call("back"))
    assert [o.round for o in shown] == [0, 1, 2, 3] and all(o.error == "" and not o.images for o in shown)
    first, off, on, home = (o.text for o in shown)
    assert first == ""
    assert off.split("\n")[0] == 'App "com.android.settings", screen 1080 x 2400'
    assert "Switch (click, check; unchecked)" in off and "Switch (click, check; checked)" in on
    assert off.replace("unchecked", "checked") == on
    assert home.startswith('App "com.android.launcher"') and '"Home"' in home
    assert shown[2].info == {"package": SETTINGS, "activity": f"{SETTINGS}.Main", "size": [1080, 2400]}
    assert not any(o.done or o.truncated or o.reward is not None for o in shown)
    assert "input tap 970 240; echo selfverify-exit:$?" in phone.commands


def test_every_action_reaches_the_phone(server: Server, phone: Phone) -> None:
    """As AndroidLab's commands."""
    play(
        AndroidEnvironment(config(server)), TASK,
        call("long_press", x1=100, y1=100, x2=200, y2=200),
        call("swipe", x1=500, y1=1180, x2=580, y2=1220, direction="up", dist="medium"),
        call("wait", seconds=0), call("enter"), call("home"), call("launch", app="settings"),
    )  # fmt: skip
    done = [c.partition(";")[0] for c in phone.commands if c.startswith(("input", "monkey"))]
    assert done[-5:] == [
        "input swipe 150 150 150 150 1000",
        "input swipe 540 1200 540 768 400",
        "input keyevent KEYCODE_ENTER",
        "input keyevent KEYCODE_HOME",
        "monkey --pct-syskeys 0 -p com.android.settings -c android.intent.category.LAUNCHER 1",
    ]


@yaml_cases
def test_typing(server: Server, phone: Phone, keyboard: str, text: str, error: str) -> None:
    """Instead of what was in the field; nothing of it is a command, and the agent is told why it fails."""
    own = "input" if keyboard == "input" else "adbkeyboard"
    phone.field = "old text, " * (1 if own == "input" else 30)
    change = lambda: phone.settings.update({f"secure {IME}": keyboard} if error else {})  # noqa: E731
    environment = AndroidEnvironment(config(server, keyboard=own, reset={"how": "none"}))
    shown = play(environment, NOTE, TAP_FIELD, change, call("type", text_input=text))
    assert error in shown[-1].error and bool(shown[-1].error) == bool(error)
    assert phone.notes == ([] if error else [text]) and not (error and phone.typed)
    assert error or len(shown[-1].text.split("\n")) == 3


def test_pictures(server: Server) -> None:
    """`png` shows no words, `both` shows both, and the first screen is given where it is asked for."""
    seen = AndroidEnvironment(config(server, observations="png", first_screen="given"))
    only = play(seen, TASK, TAP_SWITCH)
    assert [o.text for o in only] == ["", ""] and [o.images[0].size for o in only] == [(1080, 2400)] * 2
    assert [o.images[0].getpixel((0, 0)) for o in only] == [(1, 1, 1), (255, 255, 255)]
    both = play(AndroidEnvironment(config(server, observations="both", first_screen="given")), TASK)
    assert "Wi-Fi" in both[0].text and both[0].images[0].mode == "RGB"


def test_elements_by_id(server: Server, phone: Phone) -> None:
    """A call names an element of the last screen."""
    [_, screen] = play(AndroidEnvironment(config(server, address="ids")), TASK, LOOK)
    [line] = [line for line in screen.text.split("\n") if "Switch" in line]
    switch = call("tap", id=line.split("]")[0].removeprefix("["))
    again = AndroidEnvironment(config(server, address="ids"))
    shown = play(again, TASK, LOOK, switch, call("tap", id="n0000x"))
    assert "; checked)" in shown[2].text and phone.wifi and "no element" in shown[3].error


def test_wrong_calls_are_answered(server: Server, phone: Phone) -> None:
    """They count as calls; nothing is done."""
    shown = play(
        AndroidEnvironment(config(server, steps=4)), TASK,
        call("tap", x1=5000, y1=0, x2=5001, y2=1), call("fly"), call("launch", app="Solitaire"),
        call("launch", app="org.not.there"), LOOK,
    )  # fmt: skip
    assert "outside the screen" in shown[1].error and "no tool 'fly'" in shown[2].error
    assert "no app is known as 'Solitaire'; known are" in shown[3].error
    assert "monkey failed" in shown[4].error and "No activities found" in shown[4].error
    assert [o.truncated for o in shown] == [False, False, False, False, True, False]
    assert shown[5].error == "the session has ended after 4 calls" and shown[5].round == 5
    assert not any(c.startswith("input tap") for c in phone.commands)


def test_a_screen_that_moves_is_waited_for(server: Server, phone: Phone) -> None:
    """Two looks in a row have to see the same."""
    frames = [(SAID + hierarchy(view("TextView", (0, 0, 9, 9), text=f"frame {i}"))).encode() for i in "1233"]
    environment = AndroidEnvironment(config(server, settle_seconds=5, reset={"how": "none", "start": "home"}))
    shown = play(environment, TASK, lambda: phone.dumps.extend(frames), call("back"))
    assert '"frame 3"' in shown[1].text and phone.dumps == []


@pytest.mark.parametrize(
    ("dump", "said"), [(b"", "could not get idle state"), (SAID.encode() + b"<hierarchy><node", "broken XML")]
)
def test_screens_that_cannot_be_read(server: Server, phone: Phone, dump: bytes, said: str) -> None:
    """The call was carried out; the agent reads why nothing is shown. A later look may see more."""
    broken = lambda: phone.dumps.extend([dump] * 3)  # noqa: E731
    for observations in ("xml", "either"):
        made = AndroidEnvironment(config(server, observations=observations))
        shown = play(made, TASK, broken, TAP_SWITCH, LOOK)
        assert shown[1].error == "" and said in shown[1].text and "cannot be described" in shown[1].text
        assert "; checked)" in shown[2].text
        # The last way out is a picture, for policies that read them.
        assert [len(o.images) for o in shown] == [0, int(observations == "either"), 0]


def test_screens_that_an_accessibility_app_describes(server: Server, phone: Phone) -> None:
    """Of some packages only, and uiautomator's where it has written nothing lately."""
    phone.described = hierarchy(view("TextView", (0, 0, 9, 9), text="Route 5")).encode()
    gone = lambda: setattr(phone, "described", b"")  # noqa: E731
    made = AndroidEnvironment(config(server, accessibility=[SETTINGS]))
    shown = [o.text for o in play(made, TASK, LOOK, call("home"), call("launch", app="settings"), gone, LOOK)]
    assert ["Route 5" in text for text in shown] == [False, True, False, True, False]
    assert "Home" in shown[2] and "Wi-Fi" in shown[4]


def black() -> bytes:
    return png((1080, 2400), (0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize(
    ("picture", "said", "images"),
    [
        (black, "the screenshot is black", 1),
        (lambda: b"", "no screenshot", 0),
        (lambda: b"\x89PNG\r\n\x1a\nbroken", "no screenshot", 0),
        (lambda: black()[:200], "no screenshot", 0),
    ],
)
def test_secure_windows(server: Server, phone: Phone, picture: Any, said: str, images: int) -> None:
    """An app that forbids screenshots is told of; its words may still be there."""
    phone.picture = picture
    shown = play(AndroidEnvironment(config(server, observations="both")), TASK, LOOK)
    assert said in shown[1].text and len(shown[1].images) == images and "Wi-Fi" in shown[1].text


@pytest.mark.parametrize("rotation", [0, 1])
def test_rotation(server: Server, phone: Phone, rotation: int) -> None:
    """Held sideways, places right of the upright screen can be touched."""
    phone.rotation = rotation
    far = call("tap", x1=2000, y1=200, x2=2100, y2=300)
    shown = play(AndroidEnvironment(config(server, observations="both")), TASK, far)
    assert ("outside" in shown[1].error) == (rotation == 0)
    if rotation:
        assert "screen 2400 x 1080" in shown[1].text and shown[1].images[0].size == (2400, 1080)


def test_several_displays(server: Server, phone: Phone) -> None:
    """The default one is used, and an override of its size counts."""
    phone.displays, phone.override = 2, "Override size: 540x1200\n"
    shown = play(AndroidEnvironment(config(server, observations="both")), TASK, LOOK)
    assert shown[1].images and "screen 540 x 1200" in shown[1].text


# Losses


@yaml_cases
def test_devices_that_cannot_be_used(
    server: Server, phone: Phone, part: str, name: str, value: Any, message: str
) -> None:
    """Each is a loss that says what to do; no server is started."""
    made = config(server)
    if part == "settings":
        made = made.model_copy(update={name: value})
    else:
        setattr({"server": server, "phone": phone}[part], name, value)
    with pytest.raises(EnvironmentLost, match=message):
        play(AndroidEnvironment(made), TASK)


def test_an_older_server_is_spoken_to(phone: Phone) -> None:
    """Version 40 knows no host:tport."""
    with adb_server({SERIAL: phone}, version=40) as old:
        play(AndroidEnvironment(config(old)), TASK, TAP_SWITCH)
        assert phone.wifi and "host:transport:emulator-5554" in old.requests


@pytest.mark.parametrize("when", ["input tap", "dumpsys window"])
def test_a_device_that_vanishes(server: Server, phone: Phone, when: str) -> None:
    """In the middle of a call: the session is lost for good, closing it is not."""
    environment = AndroidEnvironment(config(server))

    async def lost() -> None:
        phone.on_command = lambda command: server.phones.clear() if when in command else None
        with pytest.raises(EnvironmentLost, match="not found"):
            await environment.step(TAP_SWITCH)
        server.phones[SERIAL] = phone
        for again in (environment.step(LOOK), environment.reset(TASK, 0), environment.state()):
            with pytest.raises(EnvironmentLost, match="not found"):
                await again
        await environment.close()

    play(environment, TASK, lost)


def test_a_hanging_device_blocks_nothing(server: Server, phone: Phone) -> None:
    """Another device answers before its deadline has passed."""
    other = Phone()
    server.phones["emulator-5556"] = other
    hanging = AndroidEnvironment(config(server, command_seconds=0.6))
    well = AndroidEnvironment(config(server, serial="emulator-5556"))

    async def run() -> None:
        await hanging.reset(TASK, 0)
        await well.reset(TASK, 0)
        phone.deaf = 30
        lost = asyncio.create_task(hanging.step(LOOK))
        assert "Wi-Fi" in (await well.step(LOOK)).text and not lost.done()
        with pytest.raises(EnvironmentLost, match="did not answer in time"):
            await lost
        await well.close()

    asyncio.run(run())


def test_a_cancelled_call_loses_the_session(server: Server, phone: Phone) -> None:
    """Nobody knows how far it came."""
    environment = AndroidEnvironment(config(server))

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(environment.step(call("wait", seconds=30)), 0.05)

    with pytest.raises(EnvironmentLost, match="was cancelled"):
        play(environment, TASK, cancelled, LOOK)


def test_one_session_for_one_device(server: Server) -> None:
    """A second one is refused until the first one is closed."""
    first, second = AndroidEnvironment(config(server)), AndroidEnvironment(config(server))

    async def refused() -> None:
        with pytest.raises(ConfigError, match="used by another session"):
            await second.reset(TASK, 0)

    play(first, TASK, refused)
    with pytest.raises(EnvironmentLost, match="was closed"):
        asyncio.run(first.step(LOOK))
    play(second, TASK)


# Real devices


def allowing(answer: bool, asked: list[str]) -> Any:
    async def confirm(what: str) -> bool:
        asked.append(what)
        return answer

    return confirm


def test_real_devices_need_leave(server: Server) -> None:
    """Allowed apps, somebody who confirms, and a task of an allowed app; nothing is done before."""
    server.phones[SERIAL] = phone = Phone(emulator=False)
    asked: list[str] = []
    for settings, confirm, message in (
        ({}, allowing(True, asked), "is a real device"),
        ({"allowed": [SETTINGS]}, None, "is a real device"),
        ({"allowed": [NOTES]}, allowing(True, asked), "com.android.settings, which is not in `allowed`"),
        ({"allowed": [SETTINGS]}, allowing(False, asked), "was not confirmed"),
    ):
        with pytest.raises(ConfigError, match=message):
            play(AndroidEnvironment(config(server, **settings), confirm), TASK)
    assert len(asked) == 1 and "reset" in asked[0] and "clear" in asked[0]
    assert all(command.startswith("getprop") for command in phone.commands)


@pytest.mark.parametrize("window", ["PopupWindow:8b2e", f"{SETTINGS}/.Main EXITING"])
def test_windows_of_an_app_are_the_app(server: Server, window: str) -> None:
    """Also its menus, which have no name of their own; what is no app's window is not shown."""
    server.phones[SERIAL] = phone = Phone(emulator=False)
    settings = config(server, allowed=[SETTINGS])
    _, shown, hidden = play(
        AndroidEnvironment(settings, allowing(True, [])), TASK,
        lambda: setattr(phone, "window", window), TAP_SWITCH,
        lambda: setattr(phone, "window", "NotificationShade"), LOOK,
    )  # fmt: skip
    assert phone.wifi and shown.text.startswith(f'App "{SETTINGS}"')
    assert hidden.text == "(NotificationShade may not be shown on this phone)"


def test_other_apps_of_a_real_device_are_neither_used_nor_shown(server: Server, tmp_path: Path) -> None:
    """Not even when they come to the front by themselves."""
    server.phones[SERIAL] = phone = Phone(emulator=False)
    asked: list[str] = []
    settings = config(server, allowed=[SETTINGS], observations="both", traces=tmp_path)
    _, toggled, launched, looked, tapped, home, again = play(
        AndroidEnvironment(settings, allowing(True, asked)), TASK,
        TAP_SWITCH, call("launch", app=SECRET), lambda: setattr(phone, "focus", SECRET),
        LOOK, TAP_SWITCH, call("back"), call("launch", app="settings"),
    )  # fmt: skip
    assert "; checked)" in toggled.text and phone.wifi
    assert "com.bank may not be used" in launched.error and "com.bank may not be used" in tapped.error
    assert looked.text == "(com.bank may not be shown on this phone)" and not looked.images
    assert home.text == f"({HOME} may not be shown on this phone)" and "Wi-Fi" in again.text
    kinds = [question.split("(")[0].split(" ")[0] for question in asked]
    assert kinds == ["reset", "Tap", "PressKey", "LaunchApp"]
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*.xml"))
    assert b"12,345" not in kept and b"Wi-Fi" in kept


def test_an_owner_may_refuse(server: Server) -> None:
    """The agent is told, and the session goes on."""
    server.phones[SERIAL] = phone = Phone(emulator=False)
    answers = iter([True, False, True])

    async def confirm(what: str) -> bool:
        return next(answers)

    made = AndroidEnvironment(config(server, allowed=[SETTINGS]), confirm)
    shown = play(made, TASK, TAP_SWITCH, TAP_SWITCH)
    assert "owner does not allow" in shown[1].error and shown[2].error == "" and phone.wifi


# Traces


def test_traces_are_androidlabs(server: Server, phone: Phone, tmp_path: Path) -> None:
    """A line for each action with the screen before it, and the end; looks are no lines."""
    query = "adb shell settings get global airplane_mode_on"
    task = {**TASK, "queries": [query]}
    calls = [LOOK, TAP_SWITCH, call("fly"), call("type", text_input="ü\n"), call("launch", app="Settings"),
             call("swipe", x1=0, y1=0, x2=9, y2=9, direction="down", dist="short"), call("wait", seconds=0),
             call("back")]  # fmt: skip
    environment = AndroidEnvironment(config(server, traces=tmp_path))
    asked: list[int] = []
    shown = play(environment, task, *calls, lambda: asked.append(len(phone.commands)),
                 lambda: environment.submitted("Wi-Fi is on"), LOOK)  # fmt: skip
    assert "was handed in" in shown[-1].error and asked == [len(phone.commands)]
    home = tmp_path / "setting_1_7"
    lines = [json.loads(line) for line in (home / "traces" / "trace.jsonl").read_text().splitlines()]
    assert [(line["index"], line["parsed_action"]) for line in lines] == list(enumerate([
        {"operation": "do", "action": "Tap", "kwargs": {"element": [900, 200, 1040, 280]}},
        {"operation": "do", "action": "Type", "kwargs": {"text": "ü\n"}},
        {"operation": "do", "action": "Launch", "kwargs": {"package": "Settings"}},
        {"operation": "do", "action": "Swipe",
         "kwargs": {"element": [0, 0, 9, 9], "direction": "down", "dist": "short"}},
        {"operation": "do", "action": "Wait"},
        {"operation": "do", "action": "Press Back"},
        {"operation": "finish", "action": "finish", "kwargs": {"message": "Wi-Fi is on"}},
    ]))  # fmt: skip
    first, second, last = lines[0], lines[1], lines[-1]
    assert first["prompt"] == first["target"] == "Turn Wi-Fi on." and first["trace_id"] == "setting_1_7"
    assert first["window"] == [1080, 2400] and first["current_activity"] == SETTINGS
    assert first["ac_xml"] is None and first["command"] == {query: "0"}
    xmls = [Path(line["xml"]).read_text() for line in (first, second, last)]
    assert all(xml.startswith("<?xml") for xml in xmls)
    assert ['checked="true"' in xml for xml in xmls] == [False, True, False] and "Home" in xmls[2]
    assert all(Image.open(line["image"]).size == (1080, 2400) for line in lines)
    assert second["current_response"] == "do(action='Type', text='ü\\n')"
    play(AndroidEnvironment(config(server, traces=tmp_path)), task, LOOK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["setting_1_7", "setting_1_7-2"]
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="file: this folder cannot be made"):
        play(AndroidEnvironment(config(server, traces=tmp_path / "file")), TASK)


def test_state(server: Server) -> None:
    """Which app is in front, and the answers to the task's questions."""
    environment = AndroidEnvironment(config(server))
    query = "adb shell settings get global airplane_mode_on"
    found: list[Any] = [asyncio.run(environment.state())]

    async def ask() -> None:
        found.append(await environment.state())

    play(environment, {**TASK, "queries": [query]}, ask)
    state = {"package": SETTINGS, "activity": f"{SETTINGS}.Main", "answers": {query: "0"}}
    assert found == [None, state]
    with pytest.raises(ConfigError, match="reset the environment"):
        asyncio.run(AndroidEnvironment(config(server)).step(LOOK))


# The program


@pytest.mark.parametrize("words", [["devices"], ["shell", "getprop ro.hardware"]])
def test_the_program_adb_understands_the_server(server: Server, words: list[str]) -> None:
    """What these tests rest on: adb itself takes the fake server for one of its own."""
    import adbutils

    port = server.address.rpartition(":")[2]
    command = [adbutils.adb_path(), "-P", port, *(["-s", SERIAL] if words[0] == "shell" else []), *words]
    said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ("ranchu" if words[0] == "shell" else f"{SERIAL}\tdevice") in said.stdout, said.stderr


def test_adb_servers_with_ipv6_addresses() -> None:
    """Their colons may stand in brackets, which no socket takes."""
    for address in ("[::1]:5038", "::1:5038"):
        device = AdbDevice("emulator-5554", address, 1.0)
        assert (device.host, device.port) == ("::1", 5038)
        with pytest.raises(EnvironmentLost, match="no adb server at ::1:5038"):
            asyncio.run(device.open())


def test_settings_are_checked() -> None:
    """Before a device is touched."""
    good = {"serial": "x", "reset": {"how": "none"}}
    resets = (
        {}, {"how": "snapshot"}, {"how": "clear", "snapshot": "x"}, {"how": "snapshot", "snapshot": "a b"},
        {"how": "none", "date": "10 May"}, {"how": "none", "locale": "en;reboot"},
    )  # fmt: skip
    others: tuple[dict[str, Any], ...] = ({"server": "5037"}, {"server": "h:0"}, {"allowed": ["Settings"]})
    for wrong in (*others, *({"reset": reset} for reset in resets)):
        with pytest.raises(ValidationError):
            AndroidTaskConfig.model_validate({**good, **wrong})


@yaml_cases
def test_tasks_are_checked(server: Server, phone: Phone, task: dict[str, Any], message: str) -> None:
    """One of an app that is not known, not there, or does not start."""
    phone.broken = {NOTES}
    with pytest.raises(DataError, match=message):
        play(AndroidEnvironment(config(server, reset={"how": "none"})), {**TASK, **task})


def test_the_page_runs_as_written(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first example of docs/android.md, and what it prints."""
    page = (Path(__file__).parents[3] / "docs" / "android.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert code.count('serial="emulator-5554", ') == 1
    program = tmp_path / "program.py"
    code = code.replace('serial="emulator-5554", ', f'serial="emulator-5554", server="{server.address}", ')
    program.write_text(code, encoding="utf-8")
    runpy.run_path(str(program))
    assert capsys.readouterr().out == page.partition("prints, on a phone")[2].split("```")[1].lstrip("\n")
