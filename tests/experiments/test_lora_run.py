"""A run with an adapter from the command line: train, resume, measure, merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfverify.cli.main import app

SMALL = ["policy.lora.rank=4", "learner.steps=1", "learner.optim.warmup=0", "learner.groups_per_step=2"]
FEW = ["evaluation.problems=2", "evaluation.samples=2"]


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_train_eval_and_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("train", "adpo-digits", "output=runs/mine", *SMALL, *FEW)
    assert (tmp_path / "runs/mine/model/adapter_config.json").is_file()
    call("train", "runs/mine", "--resume", "learner.steps=2")
    call("eval", "runs/mine")
    measured = json.loads((tmp_path / "runs/mine/eval/metrics.json").read_text())["after"]
    after = json.loads((tmp_path / "runs/mine/metrics.json").read_text())["after"]
    assert measured["pass@1"] == after["pass@1"] and measured["score_mean"] == after["score_mean"]
    call("merge", "runs/mine", "whole")
    assert (tmp_path / "whole/config.json").is_file()
    call("eval", "whole", "--recipe", "runs/mine", "--output", "merged")
    merged = json.loads((tmp_path / "merged/metrics.json").read_text())["after"]
    assert merged["score_mean"] == pytest.approx(after["score_mean"], abs=0.1)
    again = CliRunner().invoke(app, ["merge", "runs/mine", "whole"])
    assert again.exit_code == 2 and "not empty" in again.output
    nothing = CliRunner().invoke(app, ["merge", "nowhere", "other"])
    assert nothing.exit_code == 2 and "neither a run nor a saved model" in nothing.output
