"""Settings: paths and addresses, and how long a training is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from selfverify.core.config import checked_address
from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.recipe import Recipe, load_recipe, to_yaml
from selfverify.tasks.row_task import DataFileConfig, File


def test_settings_take_paths(tmp_path: Path) -> None:
    assert PolicyConfig.model_validate({"path": tmp_path}) == PolicyConfig(path=str(tmp_path))
    assert PolicyConfig().for_model(tmp_path).path == str(tmp_path)
    plain = DataFileConfig(path="rows.jsonl", images=str(tmp_path))
    assert DataFileConfig.model_validate({"path": Path("rows.jsonl"), "images": tmp_path}) == plain
    assert TypeAdapter(File).validate_python(Path("rows.jsonl")) == DataFileConfig(path="rows.jsonl")


def test_a_recipe_with_paths_is_written_as_text(tmp_path: Path) -> None:
    recipe = load_recipe("adpo-digits")
    changed = {"policy": {"path": tmp_path}, "output": tmp_path / "run"}
    made = Recipe.model_validate(recipe.model_dump() | changed)
    assert made.folder == tmp_path / "run" and f"output: {tmp_path / 'run'}" in to_yaml(made)


def test_passes_decide_the_steps_and_the_warm_up() -> None:
    config = TrainerConfig(
        steps=100, epochs=2, groups_per_step=32, optim={"warmup": 0.1}, log={"evaluate_every": 50}
    )
    found = config.lasting(400)
    assert (found.steps, found.warmup_steps, found.log.evaluate_every) == (25, 2, 25)  # 800 / 32
    assert found.epochs is None
    assert config.lasting(401).steps == 26 and config.lasting(10_000).steps == 100
    assert config.lasting(1).steps == 1 and config.lasting(400, epochs=4).steps == 50
    assert config.warmup_steps == 10


def check(url: str) -> str:
    return checked_address(url, "http://127.0.0.1:8000", "apart")


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:1/v1", "http://[::1]:80", "http://h/a@b", "http://127.0.0.1:8000/v1"]
)
def test_what_is_an_address(url: str) -> None:
    assert check(url) == check(url + "/") == url


@pytest.mark.parametrize(
    "url",
    [
        "", "h", "h:1", "ftp://h", "http://", "http://:1", "http://h:port", "http://h:99999", "http://[::1",
        "http://::1:8000", "http://h h", "http://h\n",
    ],
)  # fmt: skip
def test_what_is_none(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is no address of a server; one looks like http://127\.0\.0\.1:8000"
    ):
        check(url)
