"""`reproduce.before_after` tells what one run changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.samples import sample, write_samples

from reproduce import before_after as program


def write(run: Path, stage: str, right: str) -> None:
    """Problems of two samples each: how many are right, such as ``"012"``; right ones score higher."""
    run.mkdir(exist_ok=True)
    rows = [
        sample(f"p{p}", n, n < int(count), 0.9 if n < int(count) else 0.1)
        for p, count in enumerate(right)
        for n in range(2)
    ]
    write_samples(run / f"samples-{stage}.jsonl", {}, rows)


def test_both_stages_and_their_difference(tmp_path: Path) -> None:
    run, out = tmp_path / "mine", tmp_path / "o.json"
    write(run, "before", "0110")
    write(run, "after", "1120")
    program.main([str(run), "--output", str(out)])
    found = json.loads(out.read_text())
    assert found["run"] == "mine" and found["problems"] == 4
    # 2 of 8 samples are right, then 4; no problem gets worse, so neither does any draw of problems.
    assert found["before"]["pass@1"]["value"] == pytest.approx(2 / 8)
    assert found["after"]["pass@1"]["value"] == pytest.approx(4 / 8)
    over = found["difference"]["pass@1"]
    assert over["difference"] == pytest.approx(2 / 8)
    low, high = over["interval"]
    assert 0 <= low <= 2 / 8 <= high <= 1 / 2
    # The best of two by score is right wherever one of them is: in 2, then 3 of 4 problems.
    assert found["difference"]["best@2"]["difference"] == pytest.approx(1 / 4)


def test_a_run_that_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "mine", "after", "01")
    with pytest.raises(SystemExit):
        program.main([str(tmp_path / "mine")])
    assert "samples-before.jsonl is missing" in capsys.readouterr().err
