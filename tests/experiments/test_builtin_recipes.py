"""The recipes that ship."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import builtin_recipes, load_recipe


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_every_recipe_that_ships_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin from a model of this machine name a folder, which is somebody else's."""
    monkeypatch.chdir(tmp_path)
    path = yaml.safe_load(builtin_recipes()[name].read_text())["policy"]["path"]
    if path.startswith("./"):
        with pytest.raises(ConfigError, match="there is no such model folder") as caught:
            load_recipe(name)
        assert "\n" not in str(caught.value)
    else:
        assert load_recipe(name).name == name
