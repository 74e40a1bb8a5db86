"""Files where folders are needed, folders where files are, devices that do not exist: one clear line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import command
from tables import yaml_cases


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a file, an empty folder, a file that is no image, and half a run."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("hello\n")
    Path("folder").mkdir()
    Path("cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("run/metrics.jsonl").mkdir(parents=True)
    Path("begun").mkdir()
    Path("begun/metrics.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n')
    return tmp_path


def last_words(*words: str) -> str:
    """What the command says as it fails."""
    return command(*words, code=2).stderr


@yaml_cases
def test_it_is_one_clear_error(odd: Path, words: str, said: str) -> None:
    assert said in last_words(*words.split())


def test_an_empty_question_is_none(odd: Path) -> None:
    assert "a question is missing" in last_words("solve", " ")


def test_a_report_refuses_a_step_that_is_no_number_and_reads_over_such_values(odd: Path) -> None:
    metrics = Path("folder/metrics.jsonl")
    metrics.write_text('{"step": "x", "accuracy": "y"}\n')
    assert "metrics.jsonl, line 1: step: a number is needed" in last_words("report", "folder")
    metrics.write_text('{"step": 1, "accuracy": "y", "loss": {"a": []}}\n')
    command("report", "folder")
