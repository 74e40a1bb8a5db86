"""Recipes: what is accepted, what is refused, and that the message says where and what was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Credit, Group
from selfverify.experiments import recipe as recipe_module
from selfverify.experiments import registry
from selfverify.experiments.recipe import (
    builtin_recipes,
    load_recipe,
    recipe_summary,
    recipe_task,
    refuse_hidden,
    to_yaml,
)
from selfverify.experiments.recipe_yaml import dump_yaml, load_yaml
from selfverify.methods.base import Method, MethodConfig
from selfverify.tasks.base import Task, Verdict
from tables import yaml_cases

GOOD = Path(__file__).with_name("counting.yaml").read_text("utf-8")


class CountingConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    digits: int = 6
    sizes: tuple[int, int] = (1, 2)


class Counting(Task):
    name = "counting"
    config_class: Any = CountingConfig

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        raise NotImplementedError

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        raise NotImplementedError


class PairsConfig(MethodConfig):
    beta: float = 0.04
    credit: Literal["normalised", "concordance"] = "normalised"


class Plain(Method):
    name = "plain"
    config_class = PairsConfig

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        raise NotImplementedError


class Pairs(Plain):
    name = "pairs"

    def faults(self, learner: TrainerConfig, sampling: SamplingConfig) -> list[str]:
        faults = super().faults(learner, sampling)
        if sampling.group_size < 2:
            faults.append("sampling.group_size=1 leaves method pairs nothing to compare; use 2 or more")
        return faults


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TASKS", {"counting": Counting})
    monkeypatch.setattr(registry, "METHODS", {"pairs": Pairs, "plain": Plain})


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "counting.yaml"
    path.write_text(GOOD)
    return path


def refusal(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def test_a_good_recipe_is_completed_with_defaults(good: Path) -> None:
    recipe = load_recipe(good)
    assert recipe.learner.optim.learning_rate == 3e-4
    assert recipe.policy.shared_prefix == "off"
    assert recipe.task.options == {"digits": 4, "sizes": (1, 2)}
    assert (recipe.method.name, recipe.method.options["beta"]) == ("pairs", 0.04)
    assert recipe.output == "runs/counting" and recipe.folder == Path("runs/counting")
    assert load_recipe(good, ["output=~/{name}"]).folder == Path.home() / "counting"


def test_a_resolved_recipe_reads_back_equal(good: Path, tmp_path: Path) -> None:
    changed = ["learner.optim.betas=[0.5, 0.6]", "learner.optim.learning_rate=1e-5"]
    recipe = load_recipe(good, [*changed, f"output={tmp_path / 'run'}"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(to_yaml(recipe))
    again = load_recipe(tmp_path / "run")
    assert again.model_dump(mode="json") == recipe.model_dump(mode="json")
    assert to_yaml(again) == to_yaml(recipe)


def test_overrides_reach_every_kind_of_key(good: Path) -> None:
    recipe = load_recipe(
        good, ["name=other", "method.beta=0", "task.digits=9", "learner.log.trackers=[a]", "sampling.top_p=1"]
    )
    assert recipe.output == "runs/other"
    assert recipe.method.name == "pairs" and recipe.method.options["beta"] == 0
    assert recipe.task.options["digits"] == 9
    assert recipe.learner.log.trackers == ["a"]


def test_an_override_does_not_leak_through_a_yaml_alias(tmp_path: Path) -> None:
    path = tmp_path / "alias.yaml"
    path.write_text(GOOD.replace("method: pairs", "method: &m {name: pairs}").replace("  digits: 4\n", ""))
    assert load_recipe(path, ["method.beta=1"]).task.options["digits"] == 6


@yaml_cases
def test_faults_in_a_file_name_line_and_key(good: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    good.write_text(GOOD.replace(old, new))
    assert expected in refusal(good)
    assert str(good) in refusal(good)


@yaml_cases
def test_faults_in_overrides(good: Path, override: str, expected: str) -> None:
    assert expected in refusal(good, override)


def test_vllm_starts_from_no_gguf_file(good: Path, tmp_path: Path) -> None:
    """Nor from an adapter on one: it reads the folder itself."""
    packed, adapter = tmp_path / "packed.gguf", tmp_path / "adapter"
    packed.write_bytes(b"")
    adapter.mkdir()
    about = {"base_model_name_or_path": str(packed), "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    for path in (packed, adapter):
        load_recipe(str(good), [f"policy.path={path}"])
        vllm = ["sampling.engine=vllm", "sampling.vllm.server_base_url=http://127.0.0.1:9"]
        with pytest.raises(ConfigError, match=rf"`selfverify merge {path} FOLDER` unpacks it"):
            load_recipe(str(good), [f"policy.path={path}", *vllm])


def test_a_recipe_changes_the_limits_of_conversations(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single = load_recipe(good)
    assert recipe_task(single).limits == RolloutLimits(turns=1)
    monkeypatch.setattr(registry.TASKS["counting"], "limits", RolloutLimits(turns=9, step_timeout_s=2.0))
    changed = load_recipe(good, ["episode.turns=4", "episode.step_threads=3"])
    assert recipe_task(changed).limits == RolloutLimits(turns=4, step_threads=3, step_timeout_s=2.0)
    assert recipe_task(load_recipe(good)).limits == RolloutLimits(turns=9, step_timeout_s=2.0)
    assert "episode.turns: should be greater than or equal to 1" in refusal(good, "episode.turns=0")
    assert "did you mean episode.step_timeout_s?" in refusal(good, "episode.step_timeout=3")
    assert "set episode.step_threads" in refusal(good, "episode.step_timeout_s=3")
    monkeypatch.setattr(registry.METHODS["pairs"], "limits", RolloutLimits(turns=2))
    assert "method pairs are as long as it says itself" in refusal(good, "episode.turns=4")


def test_a_recipe_measures_on_another_variant_of_its_task(good: Path, tmp_path: Path) -> None:
    recipe = load_recipe(good, ["evaluation_task.digits=9"])
    assert recipe.task.options["digits"] == 4 and recipe.measured_task.options["digits"] == 9
    assert recipe_task(recipe).config.digits == 4 and recipe_task(recipe, measured=True).config.digits == 9
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(recipe))
    assert load_recipe(again) == recipe
    assert load_recipe(good).measured_task == load_recipe(good).task
    refuse_hidden(recipe, ["task.sizes=[1, 3]", "task=other", "learner.steps=3", "evaluation_task.digits=8"])
    refuse_hidden(load_recipe(good), ["task.digits=4"])
    with pytest.raises(ConfigError, match=r"says 9; write evaluation_task\.digits=5"):
        refuse_hidden(recipe, ["task.digits=5"])
    with pytest.raises(ConfigError, match=r"evaluation_task\.digitz .*did you mean evaluation_task\.digits"):
        load_recipe(good, ["evaluation_task.digitz=9"])


def test_all_faults_are_reported_at_once(good: Path) -> None:
    assert len(refusal(good, "learner.steps=0", "sampling.top_p=7", "polcy.path=x").splitlines()) == 3
    wrong = ("learner.checkpoint.best_metric=best@8", "learner.optim.warmup=11")
    first, second = refusal(good, *wrong).splitlines()
    assert "best_metric" in first and "optim.warmup" in second


def test_hub_ids_and_saved_models_are_accepted(good: Path, tmp_path: Path) -> None:
    for path in ("org/name", "http://127.0.0.1:8000#org/model"):
        assert load_recipe(good, [f"policy.path={path}"]).policy.path == path
    model = tmp_path / "model"
    model.mkdir()
    assert "holds no config.json" in refusal(good, f"policy.path={model}")
    (model / "config.json").write_text("{}")
    assert load_recipe(good, [f"policy.path={model}"]).policy.path == str(model)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "there is no such recipe file" in refusal(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\n")
    assert "latin.yaml: broken YAML: a value does not fit its tag, or it" in refusal(tmp_path / "latin.yaml")
    assert "holds no recipe.yaml" in refusal(tmp_path)


@yaml_cases
def test_files_that_would_hang_or_hide_something(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "file.yaml").write_text(text.replace("DEEP", "[" * 100_000))
    assert complaint in refusal(tmp_path / "file.yaml")


def test_scalars_are_read_as_people_mean_them() -> None:
    text = "{a: 3e-4, b: off, c: no, d: 1:30, e: 2024-01-01, f: yes, g: true, h: 1_000, i: null, j: =}"
    assert load_yaml(text, "test") == {
        "a": 3e-4, "b": "off", "c": "no", "d": "1:30", "e": "2024-01-01", "f": "yes", "g": True, "h": 1000,
        "i": None, "j": "=",
    }  # fmt: skip


def test_builtin_recipes_are_found_by_name(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_module, "recipe_folder", lambda: good.parent)
    monkeypatch.setattr("selfverify.core.config.distributions", dict)
    assert builtin_recipes() == {"counting": good}
    assert load_recipe("counting").name == "counting"
    assert recipe_summary(good) == "Counting, for the tests."
    assert "did you mean counting?" in refusal("countin")
    assert "built-in recipes: counting" in refusal("zzz")


@settings(max_examples=60, deadline=None)
@example(
    {text: text for text in ("3e-4", "off", "no", "1:30", "2024-01-01", "010", "0x10", "null", "1_000", "~")}
)
@example({"next line": "\x85", "separators": "a\u2028 \u2029\ufeff", "lines": "a\n\n b\t \r\n"})
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"))
        | st.floats(allow_nan=False)
        | st.integers()
        | st.booleans()
        | st.none(),
        max_size=4,
    )
)
def test_what_is_dumped_reads_back(data: dict[str, Any]) -> None:
    assert load_yaml(dump_yaml(data), "test") == data


def test_another_method_replaces_the_section(tmp_path: Path) -> None:
    """Its options mean nothing to the other; the order of the overrides does not matter."""
    path = tmp_path / "pairs.yaml"
    options = "method: {name: pairs, credit: concordance, beta: 0.5}"
    path.write_text(GOOD.replace("method: pairs", options))
    for overrides in (["method.name=plain", "method.beta=0.1"], ["method.beta=0.1", "method.name=plain"]):
        method = load_recipe(path, overrides).method
        assert (method.name, method.options) == ("plain", {"beta": 0.1, "credit": "normalised"})
    same = load_recipe(path, ["method.name=pairs"]).method
    assert same.options == {"beta": 0.5, "credit": "concordance"}


def test_a_recipe_that_extends_another(good: Path) -> None:
    """What it says counts, section by section; a fault is named by the file that holds it."""
    above = good.parent / "more.yaml"
    above.write_text("extends: counting.yaml\nname: more\nlearner:\n  optim: {warmup: 2}\n")
    recipe, base = load_recipe(above), load_recipe(good)
    assert recipe.learner.optim.warmup == 2 and recipe.name == "more" and recipe.output == "runs/more"
    assert recipe.learner.model_copy(update={"optim": base.learner.optim}) == base.learner
    assert (recipe.task, recipe.method, recipe.policy) == (base.task, base.method, base.policy)
    above.write_text("extends: counting.yaml\nname: more\nlearner:\n  optim: {warm: 2}\n")
    with pytest.raises(ConfigError, match=r"more\.yaml:4: learner\.optim\.warm"):
        load_recipe(above)
    good.write_text(good.read_text().replace("digits: 4", "digit: 4"))
    above.write_text("extends: counting.yaml\nname: more\n")
    with pytest.raises(ConfigError, match=r"counting\.yaml:5: task\.digit"):
        load_recipe(above)
    good.write_text("extends: more.yaml\n" + good.read_text())
    with pytest.raises(ConfigError, match=r"extends: .* is, or extends, this recipe"):
        load_recipe(above)
