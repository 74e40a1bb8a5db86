"""`selfverify eval --calibrate` from one end to the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from samples import sample, write_samples
from selfverify.cli.main import app
from selfverify.evaluation.samples import StoredSample
from selfverify.selection.calibration import Calibration


def generator(seed: int, problems: int) -> list[StoredSample]:
    """Samples with a judge's scores that are higher for right answers."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(problems):
        for k in range(4):
            right = bool(rng.random() < (0.8 if p % 2 else 0.3))
            soft = float(rng.random())
            scores = {"soft": soft, "judge": float(rng.random() + 0.3 * right)}
            key = "right" if right else f"wrong {rng.integers(3)}"
            name = f"{'hard' if p % 2 == 0 else 'easy'}/{p}"
            rows.append(sample(name, k, right, soft, scores=scores, key=key, answer=key))
    return rows


def run(*words: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, list(words))
    return shown.exit_code, " ".join(shown.output.split())


def test_calibrate_writes_beside_the_model(tmp_path: Path) -> None:
    rows = generator(3, problems=200)
    path = tmp_path / "samples.jsonl"
    write_samples(path, {"task": "digits-pick", "weights": "abc"}, rows)
    code, text = run(
        "eval",
        "--calibrate",
        str(path),
        "--output",
        str(tmp_path),
        "--target-risk",
        "0.4",
        "--verifier",
        "judge",
    )
    assert code == 0, text
    assert "ece" in text and "answers" in text
    found = Calibration.load(tmp_path / "calibration.json")
    assert found.threshold is not None
    assert found.fitted_on is not None and found.fitted_on["weights"] == "abc"
    code, text = run("eval", "--calibrate", str(tmp_path / "no.jsonl"), "--output", str(tmp_path))
    assert code == 2 and "no.jsonl" in text


def test_calibrate_takes_a_folder(tmp_path: Path) -> None:
    """That of an evaluation; one without samples is named with what is missing."""
    write_samples(tmp_path / "samples.jsonl", {"task": "digits-pick"}, generator(3, problems=200))
    options = ("--output", str(tmp_path / "c.json"), "--verifier", "judge")
    code, text = run("eval", "--calibrate", str(tmp_path), "--test", str(tmp_path), *options)
    assert code == 0 and (tmp_path / "c.json").is_file(), text
    (tmp_path / "empty").mkdir()
    code, text = run("eval", "--calibrate", str(tmp_path / "empty"), *options)
    assert code == 2 and "empty holds no samples" in text
