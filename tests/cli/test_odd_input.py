"""Files where folders are needed, folders where files are, devices that do not exist: one clear line each."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfverify.cli.main import app

A_FILE = "file{}: this folder cannot be made"


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
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval quickstart --output file", A_FILE.format("")),
        ("eval quickstart --output file/deeper", A_FILE.format("/deeper")),
        ("eval quickstart policy.device=on", "policy.device=on: this machine has no such device; say auto"),
        ("eval quickstart policy.device=cuda:99", "policy.device=cuda:99: this machine has no such device"),
        ("train quickstart output=file", A_FILE.format("")),
        ("quickstart --fast --output file", A_FILE.format("")),
        ("merge file file", "file is a file, or not empty; choose another folder"),
        ("data filter quickstart --problems 1 --output folder", "folder: this is a folder"),
        ("report file", "there is no run in file"),
        ("report run", "run/metrics.jsonl: this is a folder"),
        ("report folder", "folder holds nothing to report"),
        ("report begun --output folder", "folder: Is a directory"),
        ("report begun --output file/report.html", A_FILE.format("")),
        ("solve --image cut.png Why?", "the image cut.png cannot be read"),
        ("solve --image folder Why?", "this is a folder"),
        ("solve --task digits-pick --save-image pick", "end the file's name with .png"),
        ("solve --task digits-pick --save-image file/pick.png", "file/pick.png: Not a directory"),
        ("solve --model folder Why?", "no model at 'folder'"),
        ("solve --calibration folder Why?", "the calibration folder cannot be read"),
        ("serve --model folder", "no model at 'folder'"),
        ("serve --upstream http://127.0.0.1:9 --api-key-file folder", "the keys folder cannot be read"),
        ("serve --upstream http://127.0.0.1:9 --host=", "--host"),
    ],
)
def test_it_is_one_clear_error(odd: Path, words: str, said: str) -> None:
    assert said in last_words(*words.split())


def test_an_empty_question_is_none(odd: Path) -> None:
    assert "a question is missing" in last_words("solve", " ")


def test_a_report_refuses_a_step_that_is_no_number_and_reads_over_such_values(odd: Path) -> None:
    metrics = Path("folder/metrics.jsonl")
    metrics.write_text('{"step": "x", "accuracy": "y"}\n')
    assert "metrics.jsonl, line 1: step: a number is needed" in last_words("report", "folder")
    metrics.write_text('{"step": 1, "accuracy": "y", "loss": {"a": []}}\n')
    assert CliRunner().invoke(app, ["report", "folder"]).exit_code == 0
