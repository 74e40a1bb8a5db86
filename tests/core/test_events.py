"""What a run writes down besides its numbers, and how it is told."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from selfverify.core.errors import DataError
from selfverify.core.events import EventLog, note, read_events

logger = logging.getLogger("selfverify.somewhere")


def names(path: Path) -> list[str]:
    return [event["event"] for event in read_events(path)]


def test_warnings_become_events_while_the_log_is_open(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.step = 7
    logger.warning("before")
    with log:
        note(logger, "image_retried", "100 % read", path="a.png", tries=2)
        logger.warning("%s is odd", "this")
        logger.info("nothing")
        logging.getLogger("elsewhere").warning("not ours")
    logger.warning("after")
    first, second = read_events(log.path)
    del first["time"]
    told = {"event": "image_retried", "message": "100 % read", "path": "a.png", "tries": 2}
    assert first == {"step": 7, **told}
    assert (second["event"], second["message"]) == ("warning", "this is odd")


def test_warnings_are_printed_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints them where nobody has set up logging, and stops when it finds a handler, such as ours."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with EventLog(tmp_path / "events.jsonl"):
        logger.warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_a_line_that_a_kill_cut_off_spoils_no_other(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("started")
    with log.path.open("a") as file:
        file.write('{"time": "20')
    log = EventLog(log.path)  # of the process that goes on
    log.append("resumed", text="\ud800 from a model", long="x" * 10_000)
    assert names(log.path) == ["started", "resumed"]
    assert len(log.path.read_bytes()) < 1000


def test_a_full_disk_does_not_end_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with EventLog(tmp_path / "file" / "events.jsonl") as log:
        log.append("started")
        logger.warning("still here")
    assert "cannot write" in caplog.text and "still here" in caplog.text


@pytest.mark.parametrize(("error", "event"), [(KeyboardInterrupt(), "interrupted"), (DataError(), "failed")])
def test_how_a_run_ended_is_written(error: BaseException, event: str, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(type(error)), log:
        raise error
    assert names(log.path) == [event]


def test_a_file_that_holds_no_events_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(DataError, match=r"line \d+: it holds no event"):
        read_events(tmp_path / "events.jsonl")
    assert read_events(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("corrupt", [b'{"event": ', b"\xff\x00", b"[1]", b""], ids=repr)
def test_a_corrupt_line_hides_no_other(
    corrupt: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("started")
    with log.path.open("ab") as file:
        file.write(corrupt + b"\n")
    log.append("finished")
    assert names(log.path) == ["started", "finished"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"left out: {log.path}, line 2: ")
