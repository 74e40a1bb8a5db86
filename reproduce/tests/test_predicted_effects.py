"""`reproduce.predicted_effects` reads samples of each kind, and finds in them what was put there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import sample, write_samples

from reproduce import predicted_effects as program
from selfverify.core.errors import DataError
from selfverify.evaluation.samples import StoredSample, StoredStep, StoredVerdict


def turn(number: int, key: str) -> StoredStep:
    return StoredStep("policy", number, "", "", [], "stop", {}, StoredVerdict(key, key, key == "r"))


def value(found: dict[str, Any], name: str) -> float:
    number: float = found[name]["value"]
    return number


def test_two_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four right answers three stay right, of four wrong ones two are mended: 2 (1.5 - 1) is the gap."""
    pairs = ["rr", "rr", "rr", "rx", "xr", "xr", "xx", "xy"]
    rows = [
        sample(
            f"p{p}", n, second == "r", None, key=second, steps=[turn(0, first), turn(1, second)],
            rewards={"answer": 0.0, "format": 1.0, "correct_1": float(first == "r")},
        )
        for p in range(2)
        for n, (first, second) in enumerate(pairs)
    ]  # fmt: skip
    write_samples(tmp_path / "samples.jsonl", {}, rows)
    program.main([str(tmp_path), "--output", str(tmp_path / "found.json")])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])[str(tmp_path)]
    assert json.loads((tmp_path / "found.json").read_text())[str(tmp_path)] == found
    assert value(found, "breakeven gap, within") == value(found, "breakeven gap, pooled") == 1.0
    assert value(found, "push on first answers, gap 1, unscaled") == pytest.approx(0)
    assert value(found, "gap at which the push turns, unscaled") == pytest.approx(1)
    assert value(found, "push on first answers, gap 0.5") > 0 > value(found, "push on first answers, gap 2")
    assert value(found, "keep_gap") == pytest.approx(3 / 4 - 1 / 4)
    # Half of the first answers are right; (1 - 1/2) / their standard deviation, sqrt(2/7), is an advantage.
    assert value(found, "push on first answers, one turn") == pytest.approx(0.25 / (2 / 7) ** 0.5, abs=1e-3)


def test_answers_with_scores_that_say_nothing(tmp_path: Path) -> None:
    """Three of four right: the binary reward pulls all scores up, the concordance credit none."""
    rng = np.random.default_rng(0)
    rows = [
        sample(f"p{p}", n, n < 6, 0.5, scores={"sampled": float(rng.integers(11)) / 10, "soft": 0.5})
        for p in range(400)
        for n in range(8)
    ]
    write_samples(tmp_path / "samples.jsonl", {}, rows)
    found = program.effects(tmp_path)
    assert found["binary: drift"]["interval"][0] > 0.05
    low, high = found["concordance: drift"]["interval"]
    assert low < 0 < high
    assert value(found, "auc") == 0.5 and "binary ends: auc" not in found


def test_boxes(tmp_path: Path) -> None:
    """Overlaps 0, .1 and .5: two of three pairs differ by more than .25, and scores rank all three."""
    overlaps = (0.0, 0.1, 0.5)
    rows = [
        sample(
            f"p{p}", n, overlap > 0.5, overlap, key=None, answer=[0, 0, 1, 1],
            rewards={"answer": overlap, "format": 1.0},
        )
        for p in range(2)
        for n, overlap in enumerate(overlaps)
    ]  # fmt: skip
    write_samples(tmp_path / "samples.jsonl", {}, rows)
    found = program.effects(tmp_path)
    assert value(found, "gamma 0.25: pairs") == pytest.approx(2 / 3)
    assert value(found, "gamma 0.25: signal") == pytest.approx(0.9 / 1.0 / np.sqrt(2 / 3))
    assert value(found, "gamma 0.25: auc of pairs") == value(found, "gamma 0.1: auc of pairs") == 1


def test_samples_without_scores_are_refused(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.jsonl", {}, [sample("p", n, n > 0, None) for n in (0, 1)])
    with pytest.raises(DataError, match="no answer has a score"):
        program.effects(tmp_path)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([sample("p", n, n > 0, None) for n in (0, 1)], "no answer has a score"),
        ([sample("p", 0, True, 0.5)], "evaluation.samples=8"),
        ([sample("p", 0, True, 0.5), *(sample("q", n, True, 0.5) for n in (0, 1))], "the same number"),
    ],
)
def test_bad_samples_end_in_a_line_that_names_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: list[StoredSample],
    says: str,
) -> None:
    write_samples(tmp_path / "samples.jsonl", {}, rows)
    with pytest.raises(SystemExit):
        program.main([str(tmp_path)])
    line = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path) in line and says in line


def test_a_missing_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["/nowhere"])
    assert "/nowhere" in capsys.readouterr().err
