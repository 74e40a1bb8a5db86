"""`selfverify train looking-digits`: a reasoner's own conversations, pairs, DPO, and ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.looks.looks_files import write_looks
from tests.experiments.looks.looks_recipe import far_recipe

from selfverify.core.errors import ConfigError, DataError
from selfverify.experiments import train_stopping as stages
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.run import train
from selfverify.experiments.visual_data import Sets
from selfverify.visual.stopping import STOPPING_FILE


def recipe(tmp_path: Path, **more: Any) -> Recipe:
    settings = {
        "output": str(tmp_path / "run"), "method": {"name": "dpo"}, "stopping": {"problems": 2, "samples": 2},
        "policy": {"path": "builtin:digits", "lora": {"rank": 2}},
        "learner": {"steps": 2, "groups_per_step": 2, "checkpoint_every": 1},
    }  # fmt: skip
    return far_recipe(**{**settings, **more})


class Stages:
    """Conversations made by hand in place of sampled ones; what the calibration is asked is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.collected: list[Recipe] = []
        self.calibrated: list[tuple[Any, ...]] = []
        self.branched: list[tuple[str, int]] = []

        def collect(
            recipe: Recipe, teacher: Any, folder: Path, problems: int, samples: int, **_: Any
        ) -> None:
            self.collected.append(recipe)
            assert teacher.own and (problems, samples) == (2, 2)
            if not folder.exists():
                write_looks(folder, problems=6)

        def calibrate(looks: Any, rule: str, target: str, wanted: float, progress: Any) -> None:
            assert (Path(looks.verifier) / "adapter_config.json").is_file()
            (Path(looks.verifier) / STOPPING_FILE).write_text("{}")
            self.calibrated.append((looks.model, rule, target, wanted))

        def branch(recipe: Recipe, teacher: Any, folder: Path, way: str, samples: int, **_: Any) -> None:
            assert teacher.own and self.collected
            self.branched.append((way, samples))

        monkeypatch.setattr(stages, "collect_looks", collect)
        monkeypatch.setattr(stages, "branch_looks", branch)
        monkeypatch.setattr(stages, "make_sets", lambda *_: Sets(traces=12, sft=6, pairs=6))
        monkeypatch.setattr(stages, "calibrate_stopping", calibrate)


def test_stages_follow_each_other_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter learns from the pairs of the model below it; called again nothing is done twice."""
    pytest.importorskip("peft")
    held, wanted = Stages(monkeypatch), recipe(tmp_path)
    folder = stages.train_stopping(wanted)
    assert folder == tmp_path / "run" and load_recipe(folder).stopping == wanted.stopping
    assert held.collected[0].policy.lora is None and held.collected[0].task.name == "digits-far"
    assert held.branched == [("hurried", 1)]
    assert held.calibrated == [("builtin:digits", "absolute", "within", 0.01)]
    metrics = folder / "verifier" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert set(json.loads((folder / "leaks.json").read_text())) >= {"accuracy", "passes"}
    before = metrics.read_text()
    stages.train_stopping(wanted, resume=True)
    assert metrics.read_text() == before and len(held.calibrated) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"method": {"name": "conversations-sft"}}, "method.name=dpo"),
        ({"policy": {"path": "builtin:digits"}}, "set policy.lora"),
    ],
)
def test_recipes_that_make_no_verifier(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    """They end before anything is done."""
    with pytest.raises(ConfigError, match=said):
        stages.train_stopping(recipe(tmp_path, **more))
    assert not (tmp_path / "run" / "looks").exists()


def test_conversations_without_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what helps."""
    Stages(monkeypatch)
    none = Sets(traces=4, sft=4, pairs_dropped={"one side is the beginning of the other": 2})
    monkeypatch.setattr(stages, "make_sets", lambda *_: none)
    with pytest.raises(DataError, match=r"no pair came of 4 conversations .*stopping.temperature"):
        stages.train_stopping(recipe(tmp_path))


def test_a_plain_run_refuses_such_a_recipe(tmp_path: Path) -> None:
    """It says who makes the pairs."""
    with pytest.raises(ConfigError, match="section `stopping`, whose pairs are to be made first"):
        train(recipe(tmp_path))
