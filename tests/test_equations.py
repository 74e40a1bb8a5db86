"""The index of equations names things that exist."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer

from selfverify.cli.main import app
from selfverify.experiments.recipe import builtin_recipes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
FOLDERS = {path.name for path in (ROOT / "src" / "selfverify").iterdir() if path.is_dir()}
DISTRIBUTIONS = {path.name for path in ROOT.glob("environments/*/selfverify_*")}
NAMES = sorted({name for name in QUOTED if name.split(".")[0] in FOLDERS | DISTRIBUTIONS and "." in name})
COMMANDS = sorted({name for name in QUOTED if name.startswith("selfverify ")})
RECIPES = sorted({name for name in QUOTED if re.fullmatch(r"(adpo|grpo|adapo)-[a-z-]+[a-z]", name)})


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name: str) -> None:
    """A module of the package or of a distribution, a name in it, a class's method or a setting."""
    whole = name if name.split(".")[0] in DISTRIBUTIONS else f"selfverify.{name}"
    owner, _, last = whole.rpartition(".")
    assert last in getattr(resolve_name(owner), "model_fields", ()) or resolve_name(whole)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    """Also those of a group, such as ``selfverify data filter``."""
    found = typer.main.get_command(app)
    for word in command.split()[1:]:
        found = found.commands[word]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_exist(name: str) -> None:
    """Recipes that ship with the package."""
    assert name in builtin_recipes()


def test_scripts_and_grids_exist() -> None:
    """Those of the repository that are named with the command."""
    named = re.findall(r"python -m (reproduce\.\w+)(?: ([a-z-]+))?", PAGE)
    assert len(named) > 4
    for script, word in named:
        assert (ROOT / f"{script.replace('.', '/')}.py").is_file(), script
        assert script != "reproduce.grid" or (ROOT / "reproduce" / "grids" / f"{word}.yaml").is_file(), word


def test_everything_is_looked_up() -> None:
    """The page is read as it is meant: each kind of name was found, and files that it names exist."""
    assert len(NAMES) > 30 and len(COMMANDS) > 3 and len(RECIPES) > 7
    for name in QUOTED:
        if name.startswith(("docs/", "tests/", "benchmarks/", "reproduce/")):
            assert (ROOT / name).is_file(), name
