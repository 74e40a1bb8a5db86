"""`reproduce.second_turns` counts what second turns did, and draws it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.samples import sample, turned, write_samples

from reproduce import second_turns as program


def write(folder: Path, pairs: str) -> str:
    folder.mkdir()
    write_samples(folder / "samples.jsonl", {}, turned(pairs))
    return str(folder)


def test_shares_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, picture = write(tmp_path / "a", "11 11 01 00"), tmp_path / "o.json", tmp_path / "p.png"
    program.main([f"a = b={folder}", "--output", str(out), "--picture", str(picture)])
    [(name, found)] = json.loads(out.read_text()).items()
    assert name == "a = b"
    shares = {part: found[part]["value"] for part in ("1->1", "0->1", "1->0", "0->0")}
    assert shares == {"1->1": 0.5, "0->1": 0.25, "1->0": 0.0, "0->0": 0.25}
    assert found["acc@t2"]["value"] == 0.75
    assert found["1->0"]["interval"] == [0.0, 0.0]
    assert "75.0" in capsys.readouterr().out
    assert Image.open(picture).width > 1000


@pytest.mark.parametrize(("given", "says"), [("gone=/nowhere", "nowhere"), ("folder", "as NAME=FOLDER")])
def test_bad_input(given: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main([given])
    assert says in capsys.readouterr().err


def test_single_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "samples.jsonl", {}, [sample("p", 0, True, None)])
    with pytest.raises(SystemExit):
        program.main([f"one={tmp_path}"])
    assert "no second turns" in capsys.readouterr().err


def test_other_numbers_of_samples_and_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = {"rewards": {"correct_1": 1.0}}
    uneven = [sample("p", 0, True, None, **two), *(sample("q", n, True, None, **two) for n in (0, 1))]
    some = [sample("p", 0, True, None, **two), sample("q", 0, True, None)]
    for rows, says in ((uneven, "the same number"), (some, "some samples have no second turns")):
        write_samples(tmp_path / "samples.jsonl", {}, rows)
        with pytest.raises(SystemExit):
            program.main([f"one={tmp_path}"])
        line = capsys.readouterr().err.splitlines()[-1]
        assert str(tmp_path) in line and says in line
