"""The recipes that ship are valid, and those at the papers' scale have the papers' values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import Recipe, builtin_recipes, load_recipe
from tables import read_tables

TABLE: dict[str, dict[str, Any]] = read_tables(Path(__file__).with_suffix(".yaml"))["recipes"]


def setting(recipe: Recipe, key: str) -> Any:
    """The value of a setting that is named as overrides name it."""
    held: Any = recipe.model_dump()
    for name in key.split("."):
        held = held[name]
    return [*held] if isinstance(held, tuple) else held


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_recipe_has_its_papers_values(name: str) -> None:
    recipe = load_recipe(name)
    assert {key: setting(recipe, key) for key in TABLE[name]} == TABLE[name]


def test_every_recipe_at_the_papers_scale_is_in_the_table() -> None:
    begins = ("adpo-", "grpo-", "adapo-", "smartsnap-", "vts-v-")
    small = ("digits", "phone", "browser", "environments", "verl")
    found = {n for n in builtin_recipes() if n.startswith(begins) and not any(word in n for word in small)}
    assert found == set(TABLE)


def test_smartsnaps_evaluation_has_a_judge_of_its_own() -> None:
    """Section 4.2: it is another model and reads the whole trajectory; all else is as in training."""
    for name in ("smartsnap-qwen3-8b", "smartsnap-llama3.1-8b"):
        recipe = load_recipe(name)
        trained, measured = recipe.task.options, recipe.measured_task.options
        assert measured["agent"]["evidence"].pop("judged") == "all"
        del trained["agent"]["evidence"]["judged"]
        own, other = trained.pop("judge"), measured.pop("judge")
        assert own["server"]["model"] != other["server"]["model"]
        assert trained == measured


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_every_recipe_that_ships_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin from a model of this machine name a folder, which is somebody else's."""
    monkeypatch.chdir(tmp_path)
    path = yaml.safe_load(builtin_recipes()[name].read_text()).get("policy", {}).get("path", "")
    if path.startswith("./"):
        with pytest.raises(ConfigError, match="there is no such model folder") as caught:
            load_recipe(name)
        assert "\n" not in str(caught.value)
    else:
        assert load_recipe(name).name == name
