"""The quickstart goes on where it was stopped, and starts over when it is asked to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfverify.core.errors import ConfigError
from selfverify.experiments import quickstart as module
from selfverify.experiments.quickstart import FAST, quickstart
from selfverify.experiments.recipe import load_recipe, to_yaml

TINY = (
    "learner.steps=2", "learner.warmup_steps=0", "learner.groups_per_step=2", "sampling.group_size=4",
    "evaluation.problems=2", "evaluation.samples=8",
)  # fmt: skip


@pytest.mark.parametrize("fast", [True, False])
def test_a_run_with_other_settings_is_not_touched(fast: bool, tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", [f"output={tmp_path}", *(() if fast else FAST)])
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"other settings: evaluation\.problems was \d+ and .*--overwrite"):
        quickstart(tmp_path, fast=fast)
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "metrics.jsonl"}


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while it measured, it neither trains again nor measures again what it has."""

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    steps: list[int] = []
    on_step = module.TrainingProgress.on_step

    def counted(self: Any, step: int, *figures: Any) -> None:
        steps.append(step)
        on_step(self, step, *figures)

    monkeypatch.setattr(module, "FAST", TINY)
    monkeypatch.setattr(module, "COOL_PROBLEMS", 1)
    monkeypatch.setattr(module.TrainingProgress, "on_step", counted)
    with monkeypatch.context() as stopped:
        stopped.setattr(module, "_paper_decoding", interrupt)
        with pytest.raises(KeyboardInterrupt):
            quickstart(tmp_path, fast=True)
    done = ["metrics.jsonl", "samples-before.jsonl", "samples-after.jsonl"]
    before = {name: (tmp_path / name).read_bytes() for name in done}
    for _ in range(2):
        report = quickstart(tmp_path, fast=True)
        assert report.is_file() and (tmp_path / "samples-after-paper.jsonl").is_file()
    assert {name: (tmp_path / name).read_bytes() for name in done} == before and steps == [1, 2]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["paper_decoding"]["settings"] == {"temperature": 0.2, "top_p": 0.99, "problems": 1}
    assert metrics["paper_decoding"]["after"]["samples"] == 8 and metrics["after"]["samples"] == 16
    quickstart(tmp_path, fast=True, overwrite=True)
    assert steps == [1, 2, 1, 2]
