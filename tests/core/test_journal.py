"""Journals: round trips, going on after a kill, refusing what cannot be right."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.core.test_files import full_disk

from selfverify.core.errors import ConfigError, DataError, FileError
from selfverify.core.files import differences, flatten
from selfverify.core.jsonl_store import (
    JsonlStore,
    StrictRow,
    open_journal,
    read_journal,
    read_rows,
    write_journal,
)
from selfverify.data.preferences import FilterVerdict
from selfverify.evaluation.visual_metrics import CappedProblem
from selfverify.experiments.teaching import TaughtProblem
from tables import yaml_cases

SETTINGS = {"model": "tiny", "sampling": {"temperature": 1.0, "stop": ["</score>"]}}


@dataclass
class Found(StrictRow):
    """A row."""

    index: int
    text: str
    scores: dict[str, float | None]


def found(index: int, **changes: Any) -> Found:
    return Found(index, **({"text": "7 + 2 = 9", "scores": {"soft": 0.5, "greedy": None}} | changes))


def fill(path: Path, *indices: int) -> Path:
    journal, rows = open_journal(path, Found, SETTINGS)
    journal.append(*(asdict(found(i)) for i in indices if i not in rows))
    return path


def test_reopening_goes_on(tmp_path: Path) -> None:
    path = fill(tmp_path / "j.jsonl", 0, 1)
    fill(path, 0, 1, 2)
    assert read_journal(path, Found) == (SETTINGS, {0: found(0), 1: found(1), 2: found(2)})


def test_a_kill_at_any_byte_loses_only_the_unfinished_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut the file at every length: reopening and writing what is missing gives the unbroken file."""
    whole = fill(tmp_path / "whole.jsonl", 0, 1).read_bytes()
    path = tmp_path / "cut.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert fill(path, 0, 1).read_bytes() == whole, length
    assert "cut off" in caplog.text


def test_reading_a_torn_file_warns_and_leaves_it_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(tmp_path / "j.jsonl", 0, 1)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    with caplog.at_level(logging.WARNING):
        assert read_journal(path, Found)[1].keys() == {0}
    assert path.read_bytes() == torn
    assert "last line was cut off" in caplog.text


def test_other_settings_are_named(tmp_path: Path) -> None:
    path = fill(tmp_path / "j.jsonl", 0)
    changed = {"model": "tiny", "sampling": {"temperature": 0.2, "stop": ["</score>"]}}
    with pytest.raises(ConfigError, match=r"sampling\.temperature was 1\.0 and is now 0\.2") as error:
        open_journal(path, Found, changed)
    assert "model" not in str(error.value)
    assert "another path" in str(error.value)


@yaml_cases
def test_a_corrupt_line_is_named(tmp_path: Path, line: str) -> None:
    path = fill(tmp_path / "j.jsonl", 0, 1, 2)
    lines = path.read_bytes().split(b"\n")
    lines[2] = line.replace("DEEP", "[" * 100_000).encode("latin-1")
    path.write_bytes(b"\n".join(lines))
    for open_it in (lambda: read_journal(path, Found), lambda: open_journal(path, Found, SETTINGS)):
        with pytest.raises(DataError, match=r"j\.jsonl, line 3: "):
            open_it()
    assert path.read_bytes() == b"\n".join(lines)


@yaml_cases
def test_somebody_elses_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(DataError, match="line 1: not"):
        open_journal(path, Found, SETTINGS)
    assert path.read_text() == content


def test_what_json_cannot_hold_is_refused_and_nothing_written(tmp_path: Path) -> None:
    journal = JsonlStore(tmp_path / "j.jsonl")
    for bad in (float("nan"), {1, 2}):
        with pytest.raises(DataError, match="cannot be stored as JSON"):
            journal.append({"fine": 1}, {"bad": bad})
    assert journal.sync() == 0


def test_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    assert read_rows(path) == []
    JsonlStore(path).append({"a": 1}, {"a": "ü\n\ud800"})
    with path.open("a") as file:
        file.write('{"a": 3')
    assert read_rows(path) == [{"a": 1}, {"a": "ü\n?"}]
    JsonlStore(path, repair=False)
    assert path.read_bytes().endswith(b'{"a": 3')
    JsonlStore(path).append({"a": 4})
    assert [row["a"] for row in read_rows(path)] == [1, "ü\n?", 4]
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(DataError, match="line 2: "):
        read_rows(path)


def test_differences_are_named_by_dots() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": {}}) == {"a.b.c": 1, "a.d": [2]}
    old, new = {"a": {"b": 1, "c": 2}, "d": None}, {"a": {"b": 1, "c": {"x": 3}}}
    assert differences(old, new) == ["a.c was 2 and is now None", "a.c.x was None and is now 3"]


def test_a_write_that_fails_half_way_leaves_no_half_line(tmp_path: Path) -> None:
    """The disk may have room again later, and what is appended then must not stand behind half a line."""
    journal = JsonlStore(tmp_path / "rows.jsonl")
    journal.append({"event": "before"})
    with full_disk(journal.path.stat().st_size + 10), pytest.raises(OSError):
        journal.append({"event": "does not fit"})
    journal.append({"event": "after"})
    assert [row["event"] for row in read_rows(journal.path)] == ["before", "after"]


def test_a_file_that_was_deleted_is_not_begun_anew(tmp_path: Path) -> None:
    """Its first lines would be missing, and nobody would know."""
    path = tmp_path / "rows.jsonl"
    journal = JsonlStore(path)
    journal.append({"a": 1})
    path.unlink()
    with pytest.raises(FileError, match=f"{path}: "):
        journal.append({"a": 2})
    assert not path.exists()


@pytest.mark.parametrize(
    ("row", "name"),
    [(TaughtProblem, "Lessons"), (CappedProblem, "LookedProblem"), (FilterVerdict, "Verdict")],
)
def test_files_keep_the_names_of_their_rows(row: Any, name: str, tmp_path: Path) -> None:
    """What was written under a class's former name is still read."""
    write_journal(tmp_path / "rows.jsonl", row, {}, [])
    assert json.loads((tmp_path / "rows.jsonl").read_text())["rows"] == name
    assert read_journal(tmp_path / "rows.jsonl", row) == ({}, {})
