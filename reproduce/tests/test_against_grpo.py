"""`reproduce.against_grpo` compares methods with GRPO over seeds, on the same problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.samples import sample, write_samples

from reproduce import against_grpo as program


def write(folder: Path, right: str, score: float = 0.5) -> str:
    """Problems of two samples each: how many of them are right, such as ``"012"``."""
    rows = [
        sample(f"p{p}", n, n < int(count), score if n < int(count) else 0.5)
        for p, count in enumerate(right)
        for n in range(2)
    ]
    folder.mkdir(parents=True)
    write_samples(folder / "samples.jsonl", {}, rows)
    return str(folder)


def test_differences_from_grpo(tmp_path: Path) -> None:
    grpo = [write(tmp_path / "g0", "2110"), write(tmp_path / "g1", "2100")]
    joint = [write(tmp_path / "j0", "2111", 0.9), write(tmp_path / "j1", "2211", 0.9)]
    kept, out = tmp_path / "adpo.json", tmp_path / "o.json"
    kept.write_text('{"seeds": 3}')
    before = write(tmp_path / "b", "1100")
    words = ["--grpo", *grpo, "--of", "joint", *joint, "--output", str(out), "--update", str(kept)]
    words += ["--before", before]
    program.main(words)
    found = json.loads(out.read_text())
    own, over = found["methods"]["joint"], found["methods"]["joint"]["over_grpo"]
    # 5 and 6 of 8 samples are right, GRPO's are 4 and 3.
    assert own["pass@1"]["mean"] == pytest.approx(11 / 16)
    assert found["methods"]["grpo"]["pass@1"]["mean"] == pytest.approx(7 / 16)
    assert over["pass@1"]["difference"] == pytest.approx(4 / 16)
    assert over["pass@1"]["per_seed"] == {"0": pytest.approx(1 / 8), "1": pytest.approx(3 / 8)}
    # Scores of .9 rank all right answers above wrong ones; equal ones are a coin.
    assert over["within_problem_auc"]["difference"] == pytest.approx(0.5)
    assert "best@2" in own and found["problems"] == 4
    # Before, 2 of 8 samples were right.
    assert found["before"]["pass@1"]["mean"] == pytest.approx(2 / 8)
    gained = own["over_before"]["pass@1"]
    assert gained["difference"] == pytest.approx(11 / 16 - 1 / 4)
    assert gained["per_seed"] == {"0": pytest.approx(3 / 8), "1": pytest.approx(4 / 8)}
    updated = json.loads(kept.read_text())
    assert updated["seeds"] == 3 and updated["grpo"] == found
    assert updated["grpo_gap_low"] == over["pass@1"]["interval"][0] < 0.25


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grpo, own = write(tmp_path / "g", "21"), write(tmp_path / "j", "12")
    other, fewer = write(tmp_path / "k", "121"), tmp_path / "f"
    fewer.mkdir()
    write_samples(fewer / "samples.jsonl", {}, [sample(f"p{n}", 0, True, 0.5) for n in range(2)])
    (tmp_path / "bad.json").write_text("[")
    for words, told in (
        (["--of", "joint", other], f"{other}: runs of one task need the same problems"),
        (["--of", "joint", str(fewer)], "other numbers of samples"),
        (["--of", "joint", str(tmp_path / "none")], "none"),
        (["--of", "joint"], "one folder at least"),
        (["--of", "grpo", own], "a name that no other has"),
        (["--of", "a", own, "--update", str(tmp_path / "bad.json")], "is no file of quickstart_seeds.py"),
    ):
        with pytest.raises(SystemExit):
            program.main(["--grpo", grpo, *words])
        assert told in capsys.readouterr().err
