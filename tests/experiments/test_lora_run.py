"""A run with an adapter from the command line: train, resume, measure, merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import command

SMALL = ["policy.lora.rank=4", "learner.steps=1", "learner.optim.warmup=0", "learner.groups_per_step=2"]
FEW = ["evaluation.problems=2", "evaluation.samples=2"]


def test_train_eval_and_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command("train", "adpo-digits", "output=runs/mine", *SMALL, *FEW)
    assert (tmp_path / "runs/mine/model/adapter_config.json").is_file()
    command("train", "runs/mine", "--resume", "learner.steps=2")
    command("eval", "runs/mine")
    measured = json.loads((tmp_path / "runs/mine/eval/metrics.json").read_text())["after"]
    after = json.loads((tmp_path / "runs/mine/metrics.json").read_text())["after"]
    assert measured["pass@1"] == after["pass@1"] and measured["score_mean"] == after["score_mean"]
    command("merge", "runs/mine", "whole")
    assert (tmp_path / "whole/config.json").is_file()
    command("eval", "whole", "--recipe", "runs/mine", "--output", "merged")
    merged = json.loads((tmp_path / "merged/metrics.json").read_text())["after"]
    assert merged["score_mean"] == pytest.approx(after["score_mean"], abs=0.1)
    assert "not empty" in command("merge", "runs/mine", "whole", code=2).output
    assert "neither a run nor a saved model" in command("merge", "nowhere", "other", code=2).output
