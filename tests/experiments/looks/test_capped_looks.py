"""`selfverify visual calibrate` and `compare`: a taught reasoner, and a verifier with an adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.test_looked import far, teach
from tests.experiments.looks.looks_recipe import far_recipe
from tests.visual.test_step_verifier import adapted
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.experiments import train_stopping
from selfverify.experiments.recipe import to_yaml
from selfverify.policy.policy import Policy
from selfverify.visual.stopping import STOPPING_FILE, StopCalibration


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
    assert stored.accuracy == 1.0 and stored.rule == "absolute" and found["path"].endswith(STOPPING_FILE)
    assert stored.fitted_on["task"] == "digits-far" and stored.fitted_on["max_steps"] == 9
    assert found["conversations"] == 4 and found["left_out"] == 0 and found["steps"][0] == 1
    counts = found["figures"]["counts"]
    # A step in which the model wanted to answer by itself has no Δr.
    assert sum(counts) == sum(found["means"]["conversations"])
    assert any(abs(value) > 1e-3 for value in found["means"]["plan"])
    count = len(setting.asked)
    shown = setting.run("calibrate", "--steps", "2.5", "--rule", "signed")
    assert shown.exit_code == 0 and len(setting.asked) == count, shown.output
    words = " ".join(shown.output.split())
    assert "signed: ε =" in words and "reach the cap" in words and "Δr" in words
    assert StopCalibration.load(setting.verifier).steps <= 2.5
    shown = setting.run("compare", "--json")
    assert shown.exit_code == 0, shown.output
    rules = json.loads(shown.stdout)["rules"]
    assert rules["self-stop"]["accuracy"] == 1.0 == rules["oracle"]["accuracy"]
    assert rules["self-stop"]["steps"] == rules["oracle"]["steps"] and rules["oracle"]["too_late"] == 0
    assert {"signed", "signed, skip", "signed, accept", "signed, random", "always 0"} <= set(rules)
    shown = setting.run("compare", "--absolute", "0.5", "--signed", "0.1")
    assert shown.exit_code == 0 and shown.output.count("against random stopping") == 2, shown.output
    # A verifier that was trained anew in its place has not measured these conversations.
    [weights] = setting.verifier.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes() + b" ")
    shown = setting.run("compare", "--absolute", "0.5")
    assert shown.exit_code == 2 and "verifier_weights" in shown.output, shown.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["calibrate"], "give one target"),
        (["calibrate", "--steps", "2", "--accuracy", "0.5"], "give one target"),
        (["calibrate", "--steps", "2", "--tool", "crop"], "looks in its own way"),
        (["calibrate", "--accuracy", "0.5", "--verifier", "/nowhere"], "no folder here"),
        (["calibrate", "--steps", "0.5"], "no ε reaches steps 0.5"),
        (["compare"], "no ε beside it"),
    ],
)
def test_what_cannot_be_done_is_said(setting: Setting, words: list[str], said: str) -> None:
    """With the option or the file, and status 2."""
    shown = setting.run(*words)
    assert shown.exit_code == 2 and said in " ".join(shown.output.split()), shown.output
    assert not (setting.verifier / STOPPING_FILE).exists()
