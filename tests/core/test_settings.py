"""Settings that name files take paths of `pathlib` as well as texts."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from selfverify.core.policy_config import PolicyConfig
from selfverify.experiments.recipe import Recipe, load_recipe, to_yaml
from selfverify.tasks.row_task import DataFile, File


def test_settings_take_paths(tmp_path: Path) -> None:
    assert PolicyConfig.model_validate({"path": tmp_path}) == PolicyConfig(path=str(tmp_path))
    assert PolicyConfig().for_model(tmp_path).path == str(tmp_path)
    plain = DataFile(path="rows.jsonl", images=str(tmp_path))
    assert DataFile.model_validate({"path": Path("rows.jsonl"), "images": tmp_path}) == plain
    assert TypeAdapter(File).validate_python(Path("rows.jsonl")) == DataFile(path="rows.jsonl")


def test_a_recipe_with_paths_is_written_as_text(tmp_path: Path) -> None:
    recipe = load_recipe("adpo-digits")
    changed = {"policy": {"path": tmp_path}, "output": tmp_path / "run"}
    made = Recipe.model_validate(recipe.model_dump() | changed)
    assert made.folder == tmp_path / "run" and f"output: {tmp_path / 'run'}" in to_yaml(made)
