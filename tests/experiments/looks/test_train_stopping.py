"""`selfverify train looking-digits`: a reasoner's own conversations, pairs, DPO, and ε."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.test_looked import far, teach
from tests.experiments.looks.looks_files import write_looks
from tests.experiments.looks.looks_recipe import far_recipe
from tests.visual.test_step_verifier import adapted
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.errors import ConfigError, DataError
from selfverify.experiments import train_stopping
from selfverify.experiments import train_stopping as stages
from selfverify.experiments.command_config import ListenerConfig
from selfverify.experiments.recipe import Recipe, load_recipe, to_yaml
from selfverify.experiments.run import evaluate_recipe, train
from selfverify.experiments.visual_sets import Sets
from selfverify.policy.policy import Policy
from selfverify.visual.stopping import STOPPING_FILE, StopCalibration
from tables import yaml_cases


def recipe(tmp_path: Path, **more: Any) -> Recipe:
    settings = {
        "output": str(tmp_path / "run"), "method": {"name": "dpo"}, "stopping": {"problems": 2, "samples": 2},
        "policy": {"path": "builtin:digits", "lora": {"rank": 2}},
        "learner": {"steps": 2, "groups_per_step": 2, "checkpoint": {"every": 1}},
    }  # fmt: skip
    return far_recipe(**{**settings, **more})


class Stages:
    """Conversations made by hand in place of sampled ones; what the calibration is asked is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.collected: list[Recipe] = []
        self.calibrated: list[tuple[Any, ...]] = []
        self.branched: list[tuple[str, int]] = []

        def collect(
            recipe: Recipe, teacher: Any, folder: Path, problems: int, samples: int, *_: Any, **__: Any
        ) -> None:
            self.collected.append(recipe)
            assert teacher.own and (problems, samples) == (2, 2)
            if not folder.exists():
                write_looks(folder, problems=6)

        def calibrate(looks: Any, rule: str, target: str, wanted: float, progress: Any) -> None:
            assert (Path(looks.how.verifier) / "adapter_config.json").is_file()
            (Path(looks.how.verifier) / STOPPING_FILE).write_text("{}")
            self.calibrated.append((looks.how.model, rule, target, wanted))

        def branch(recipe: Recipe, teacher: Any, folder: Path, way: str, samples: int, **_: Any) -> None:
            assert teacher.own and self.collected
            self.branched.append((way, samples))

        monkeypatch.setattr(stages, "collect_looks", collect)
        monkeypatch.setattr(stages, "branch_looks", branch)
        monkeypatch.setattr(stages, "make_sets", lambda *_, **__: Sets(traces=12, sft=6, pairs=6))
        monkeypatch.setattr(stages, "calibrate_stopping", calibrate)


def test_stages_follow_each_other_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter learns from the pairs of the model below it; called again nothing is done twice."""
    pytest.importorskip("peft")
    held, wanted = Stages(monkeypatch), recipe(tmp_path)
    folder = stages.train_stopping(wanted)
    assert folder == tmp_path / "run" and load_recipe(folder).stopping == wanted.stopping
    assert held.collected[0].policy.lora is None and held.collected[0].task.name == "digits-far"
    assert held.branched == [("hurried", 1)]
    assert held.calibrated == [("builtin:digits", "signed", "within", 0.01)]
    metrics = folder / "verifier" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert set(json.loads((folder / "leaks.json").read_text())) >= {"accuracy", "passes"}
    before = metrics.read_text()
    stages.train_stopping(wanted, resume=True)
    assert metrics.read_text() == before and len(held.calibrated) == 2
    noted = (folder / "recipe.yaml").read_bytes()
    separate = wanted.learner.optim.model_copy(update={"channels": "separate"})
    refused = wanted.model_copy(
        update={"learner": wanted.learner.model_copy(update={"steps": 3, "optim": separate})}
    )
    with pytest.raises(ConfigError, match="channels=joint"):
        stages.train_stopping(refused, resume=True)
    assert (folder / "recipe.yaml").read_bytes() == noted


@pytest.mark.parametrize(("more", "said"), [
    ({"method": {"name": "conversations-sft"}}, "method.name=dpo"),
    ({"policy": {"path": "builtin:digits"}}, "set policy.lora"),
])  # fmt: skip
def test_recipes_that_make_no_verifier(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    """They end before anything is done."""
    with pytest.raises(ConfigError, match=said):
        stages.train_stopping(recipe(tmp_path, **more))
    assert not (tmp_path / "run" / "looks").exists()


def test_conversations_without_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what helps."""
    Stages(monkeypatch)
    none = Sets(traces=4, sft=4, pairs_dropped={"one side is the beginning of the other": 2})
    monkeypatch.setattr(stages, "make_sets", lambda *_, **__: none)
    with pytest.raises(DataError, match=r"no pair came of 4 conversations .*stopping.temperature"):
        stages.train_stopping(recipe(tmp_path))


@pytest.mark.parametrize("content", ["", "\n", '{"question": "?"}\n'])
def test_a_file_without_rows_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """It is named before a model is loaded or anything of an earlier run is deleted."""
    rows, kept = tmp_path / "rows.jsonl", tmp_path / "run/looks/kept"
    rows.write_text(content)
    kept.mkdir(parents=True)
    wanted = recipe(
        tmp_path, task={"name": "look", **dict.fromkeys(("train", "validation", "test"), str(rows))}
    )
    listener = ListenerConfig(verifier=str(tmp_path), verifier_base="builtin:digits")
    monkeypatch.setattr(Policy, "load", None)
    for run in (
        lambda: stages.train_stopping(wanted),
        lambda: train(wanted.model_copy(update={"stopping": None})),
        lambda: evaluate_recipe(wanted),
        lambda: stages.CappedLooks(wanted, listener).hold("validation"),
    ):
        with pytest.raises(DataError, match=r"rows\.jsonl (is empty|has no usable row)"):
            run()
    assert kept.exists()


def test_a_plain_run_refuses_such_a_recipe(tmp_path: Path) -> None:
    """It says who makes the pairs."""
    with pytest.raises(ConfigError, match="section `stopping`, whose pairs are to be made first"):
        train(recipe(tmp_path))


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, ["visual", *map(str, words)])


class Setting:
    """A recipe, a verifier's folder, and the reasoner that loading a model gives."""

    def __init__(self, tmp_path: Path, load_policy: Callable[..., Policy], monkeypatch: Any) -> None:
        self.recipe = tmp_path / "looks.yaml"
        self.recipe.write_text(to_yaml(far_recipe(sampling={"max_new_tokens": 48})), encoding="utf-8")
        self.verifier, self.output = tmp_path / "verifier", tmp_path / "out"
        adapted(load_policy).save(self.verifier)
        self.reasoner = load_policy()
        self.asked = teach(self.reasoner, far())

        class Taught(Policy):
            @classmethod
            def load(cls, config: Any, **settings: Any) -> Policy:
                return self.reasoner

        monkeypatch.setattr(train_stopping, "Policy", Taught)

    def run(self, command: str, *words: Any) -> Any:
        small = ("evaluation.problems=4", "evaluation.samples=1")
        return run(command, self.recipe, *small, "--verifier", self.verifier, "--output", self.output, *words)


@pytest.fixture
def setting(tmp_path: Path, load_policy: Callable[..., Policy], monkeypatch: Any) -> Setting:
    return Setting(tmp_path, load_policy, monkeypatch)


def test_calibrated_and_compared(setting: Setting) -> None:
    """ε is stored beside the verifier, other targets read the same conversations, and rules are compared."""
    shown = setting.run("calibrate", "--accuracy", "1", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    stored = StopCalibration.load(setting.verifier)
    assert stored.accuracy == 1.0 and stored.rule == "signed" and found["path"].endswith(STOPPING_FILE)
    assert stored.fitted_on["task"] == "digits-far" and stored.fitted_on["max_steps"] == 9
    assert found["conversations"] == 4 and found["left_out"] == 0 and found["steps"][0] == 1
    counts = found["figures"]["counts"]
    # A step in which the model wanted to answer by itself has no Δr.
    assert sum(counts) == sum(found["means"]["conversations"])
    assert any(abs(value) > 1e-3 for value in found["means"]["plan"])
    count = len(setting.asked)
    shown = setting.run("calibrate", "--steps", "2.5", "--rule", "absolute")
    assert shown.exit_code == 0 and len(setting.asked) == count, shown.output
    words = " ".join(shown.output.split())
    assert "absolute: ε =" in words and "reach the cap" in words and "Δr" in words
    assert StopCalibration.load(setting.verifier).steps <= 2.5
    shown = setting.run("compare", "--json")
    assert shown.exit_code == 0, shown.output
    rules = json.loads(shown.stdout)["rules"]
    assert rules["self-stop"]["accuracy"] == 1.0 == rules["oracle"]["accuracy"]
    assert rules["self-stop"]["steps"] == rules["oracle"]["steps"] and rules["oracle"]["too_late"] == 0
    more = {"absolute, skip", "absolute, accept", "absolute, random"}
    assert {"absolute", *more, "always 0"} <= set(rules)
    shown = setting.run("compare", "--absolute", "0.5", "--signed", "0.1")
    assert shown.exit_code == 0 and shown.output.count("against random stopping") == 2, shown.output
    # A verifier that was trained anew in its place has not measured these conversations.
    [weights] = setting.verifier.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes() + b" ")
    shown = setting.run("compare", "--absolute", "0.5")
    assert shown.exit_code == 2 and "verifier_weights" in shown.output, shown.output


@yaml_cases
def test_what_cannot_be_done_is_said(setting: Setting, words: list[str], said: str) -> None:
    """With the option or the file, and status 2."""
    shown = setting.run(*words)
    assert shown.exit_code == 2 and said in " ".join(shown.output.split()), shown.output
    assert not (setting.verifier / STOPPING_FILE).exists()


TINY = [
    "policy.dtype=float32", "policy.gradient_checkpointing=false", "policy.device=cpu", "learner.steps=2",
    "learner.groups_per_step=2", "learner.optim.warmup=0",
]  # fmt: skip


@pytest.mark.parametrize("name", ["vts-v-sft-qwen2.5-vl-7b", "vts-v-verifier-qwen2.5-vl-7b"])
def test_the_papers_recipes(name: str, tmp_path: Path, tiny_folder: Path) -> None:
    """Two steps on an adapter, at the paper's or the release's rates."""
    pytest.importorskip("peft")
    looks = write_looks(tmp_path / "looks", problems=3)
    verifier = "verifier" in name
    data = looks / ("pairs.jsonl" if verifier else "sft.jsonl")
    more = [f"policy.path={tiny_folder}", f"task.train={data}", f"output={tmp_path}/run"]
    train(load_recipe(name, [*TINY, *more]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    if verifier:
        assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3) and "pairs/accuracy" in lines[0]
    else:
        assert lines[0]["loss"] > 1  # a sum over tokens, by 1/(H+1)


@pytest.mark.slow
def test_grpo_on_looks(tmp_path: Path) -> None:
    """Whole conversations are sampled and learnt from, whatever they come to."""
    more = ["policy.path=builtin:digits", f"output={tmp_path}/run", "evaluation.problems=1"]
    small = ["learner.steps=1", "learner.groups_per_step=1", "sampling.group_size=2"]
    recipe = load_recipe("grpo-digits-far", [*more, *small, "sampling.max_new_tokens=6", "task.max_steps=2"])
    train(recipe)
    [line] = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["tokens/response"] >= 1
