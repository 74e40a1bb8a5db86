"""AndroidLab's tasks as a task of recipes, on phones behind a fake adb server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbutils")

from pydantic import ValidationError
from tests.agents.told import held

from agents.android.fake_adb import Server, adb_server
from agents.android.phones import SETTINGS, Phone
from environment_servers import serve
from selfverify.agents.android.environment import DeviceSource
from selfverify.agents.android.task import AndroidAgents, AndroidAgentsConfig
from selfverify.agents.evidence import Vote
from selfverify.agents.judges.case import Awaited, Ballot, Case, Judge
from selfverify.connectors.endpoint import SessionLimits
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError, DataError
from selfverify.experiments.registry import make_task
from serving_servers import Loop
from tables import yaml_cases

YAML = Path(__file__).with_name("setting.yaml").read_text("utf-8")
DEVICES = ["emulator-5554", "emulator-5556"]


@pytest.fixture
def phones() -> dict[str, Phone]:
    return {serial: Phone() for serial in DEVICES}


@pytest.fixture
def server(phones: dict[str, Phone]) -> Iterator[Server]:
    with adb_server(phones) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "setting.yaml").write_text(YAML)
    return tmp_path


def options(files: Path, server: str = "127.0.0.1:5037", **more: Any) -> dict[str, Any]:
    android = {
        "server": server, "reset": {"how": "clear"},
        "settle_pause": 0.0, "settle_seconds": 0.0, "command_seconds": 5.0,
    }  # fmt: skip
    given = {"train": files, "test": files / "setting.yaml", "devices": DEVICES, "android": android}
    return {**given, "judge": {"kind": "own", "own": {"max_new_tokens": 4}}, **more}


def task(files: Path, server: str = "127.0.0.1:5037", **more: Any) -> AndroidAgents:
    made = make_task("android", **options(files, server, **more))
    assert isinstance(made, AndroidAgents)
    return made


class Reader(Judge):
    """Finds what it is shown a success where a switch is checked."""

    cases: Sequence[Case] = ()

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        self.cases = [*self.cases, case]
        shown = any("; checked" in e.seen.text for e in case.submission.evidence)
        return lambda: [Ballot(number, Vote(True, shown, "Round 2")) for number in numbers]


Phones = dict[str, Phone]
LOOK = Call("get_current_xml")
TAP = Call("tap", {"x1": 900, "y1": 200, "x2": 1040, "y2": 280})
SUBMITTED = Call("submit", {"message": "It is on.", "evidences": [2]})


def test_problems_are_those_of_the_files(files: Path) -> None:
    made = task(files)
    assert (made.count("train"), made.count("test")) == (2, 2)
    one = made.problem("test", 0, 1)
    assert one.id == "android/test/setting_2" and one.meta["question"] == "Is Wi-Fi on?"
    assert one.meta["categories"] == {"app": ["Settings"], "kind": ["query_detect"]}
    assert one.target["reset"]["package"] == SETTINGS and one.target["goal"] is None
    names = [tool["function"]["name"] for tool in one.tools]
    assert "get_current_xml" in names and names[-1] == "submit" and not one.environment_begins
    drawn = [made.problem("train", 5, n).id for n in range(4)]
    assert len({*drawn}) == 4 and {d.split("/")[2] for d in drawn[:2]} == {"setting_1", "setting_2"}
    assert drawn[2].endswith("/pass-2") and drawn == [task(files).problem("train", 5, n).id for n in range(4)]


def test_a_conversation_on_a_device(files: Path, server: Server, phones: dict[str, Phone]) -> None:
    """The judge decides; nobody else knows whether the task was done."""
    made, reader = task(files, server.address), Reader()
    made.jury.judge = reader
    problem = made.problem("test", 0, 0)
    ending = held(made, problem, LOOK, TAP, SUBMITTED)
    assert ending.rewards["answer"] == pytest.approx(0.95) and ending.rewards["judged_success"] == 1.0
    assert "truth" not in ending.rewards and ending.rewards["correct"] == 1.0
    [case] = reader.cases
    assert case.instruction == "Turn Wi-Fi on." and case.goal is None
    assert sum(bool(phone.commands) for phone in phones.values()) == 1


def test_devices_are_lent_to_one_conversation_each(files: Path, server: Server, phones: Phones) -> None:
    """Those of other adb servers, too, which may have equal serials."""
    far = {DEVICES[0]: Phone()}
    with adb_server(far) as other:
        devices = [*DEVICES, f"{other.address}/{DEVICES[0]}"]
        made = task(files, server.address, devices=devices)
        episodes = [made.open(made.problem("test", 0, 0), 0) for _ in range(3)]
        for episode in episodes:
            episode.reset()
        assert all(phone.commands for phone in (*phones.values(), *far.values()))
        for episode in episodes:
            episode.release()
        again = made.open(made.problem("test", 0, 1), 0)
        again.reset()
        again.release()
        made._lender.close()


def test_a_server_lends_devices_to_many_processes(
    files: Path, server: Server, phones: dict[str, Phone], servers: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`selfverify agent serve android`; there may be more processes than devices."""
    lends = task(files, server.address)
    sessions = SessionLimits(sessions=2)
    _, url = servers.run(serve(servers.stack, sessions, android=lends.environment))
    monkeypatch.setattr("selfverify.core.ranks.count", lambda: 3)
    monkeypatch.setattr("selfverify.core.ranks.index", lambda: 2)
    judge = {"kind": "model", "server": {"url": "http://127.0.0.1:1", "model": "m"}}
    given = [{"kind": "server", "url": url, "sessions": 2}]
    made = task(files, devices=[], sources=given, judge=judge)
    assert made.limits.concurrent == 2
    made.jury.judge = Reader()
    ending = held(made, made.problem("test", 0, 0), LOOK, TAP, SUBMITTED)
    assert ending.rewards["judged_success"] == 1.0 and any(phone.wifi for phone in phones.values())
    made._lender.close()
    lends._lender.close()


@pytest.mark.parametrize("fault", ["offline", "starting", "reset"])
def test_a_dead_device_loses_no_conversations(
    files: Path, server: Server, phones: dict[str, Phone], caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """It is left out, which is noted, and comes back when it answers; whom its reset fails gets another."""
    made, dead = task(files, server.address), phones[DEVICES[0]]
    sound = dict(dead.properties), dead.adbkeyboard
    if fault == "reset":
        dead.adbkeyboard = False
    elif fault == "offline":
        dead.state = "offline"
    else:
        dead.properties["sys.boot_completed"] = ""
    for number in range(8):
        episode = made.open(made.problem("test", 0, number % 2), 0)
        episode.reset()
        episode.release()
    assert f"{server.address}/{DEVICES[0]} is left out: " in caplog.text
    dead.state, (dead.properties, dead.adbkeyboard) = "device", sound
    [source, _] = [place.source for place in made._lender._pool._places]  # type: ignore[union-attr]
    assert isinstance(source, DeviceSource)
    assert asyncio.run(source.healthy()) == (fault != "reset"), "it rests after a reset that failed"
    source._rests_until = 0.0
    assert asyncio.run(source.healthy()) and asyncio.run(source.open())


def test_processes_share_devices(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert task(files).limits.concurrent == 2
    monkeypatch.setattr("selfverify.core.ranks.count", lambda: 2)
    monkeypatch.setattr("selfverify.core.ranks.index", lambda: 1)
    server = {"kind": "model", "server": {"url": "http://127.0.0.1:1", "model": "m"}}
    assert task(files, judge=server).limits.concurrent == 1
    monkeypatch.setattr("selfverify.core.ranks.count", lambda: 3)
    monkeypatch.setattr("selfverify.core.ranks.index", lambda: 2)
    with pytest.raises(ConfigError, match="3 processes share 2 devices"):
        task(files, judge=server)


@yaml_cases
def test_settings_that_cannot_work(files: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AndroidAgentsConfig(**options(files) | changed)


def test_files_that_cannot_work(files: Path) -> None:
    lengths = files / "lengths.json"
    lengths.write_text('{"setting_1": 4, "other": 2}')
    made = task(files, lengths=lengths)
    assert [made.problem("test", 0, n).meta.get("steps") for n in (0, 1)] == [4, None]
    assert "steps" not in made.problem("train", 0, 0).meta | made.problem("train", 0, 1).meta
    lengths.write_text('{"setting_1": "long"}')
    with pytest.raises(DataError, match=r"lengths\.json: it has a length for each task's id: setting_1"):
        task(files, lengths=lengths)
    with pytest.raises(ConfigError, match=r"no validation data; set task\.validation"):
        made.problem("validation", 0, 0)
    with pytest.raises(DataError, match="has 2 tasks, not 3"):
        made.problem("test", 0, 2)
    (files / "empty").mkdir()
    with pytest.raises(DataError, match="no task file"):
        task(files, train=files / "empty").check_files("train")
    (files / "setting.yaml").write_text(YAML.replace("task_id: setting_2", "task_id: setting_1"))
    with pytest.raises(DataError, match=r"setting\.yaml, task setting_1: the id stands in the file twice"):
        task(files).check_files("train")


def test_real_devices_are_refused_unless_they_are_named(files: Path) -> None:
    with adb_server({DEVICES[0]: Phone(emulator=False)}) as server:
        android = {**options(files, server.address)["android"], "allowed": [SETTINGS]}
        made = task(files, devices=DEVICES[:1], android=android)
        episode = made.open(made.problem("test", 0, 0), 0)
        with pytest.raises(ConfigError, match="is a real device"):
            episode.reset()
        episode.release()
        made = task(files, devices=DEVICES[:1], android=android, unattended=DEVICES[:1])
        made.jury.judge = Reader()
        assert held(made, made.problem("test", 0, 0), LOOK, TAP, SUBMITTED).rewards["judged_success"] == 1.0
        made._lender.close()
