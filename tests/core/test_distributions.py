"""What installed distributions bring along: found by entry points, and what is wrong with one is said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from selfverify.agents.environment_task import SourceConfig, source_kinds
from selfverify.connectors.server import find_environment
from selfverify.core import config
from selfverify.core.errors import ConfigError
from selfverify.experiments import registry
from selfverify.experiments.quickstart import quickstart
from selfverify.experiments.recipe import builtin_recipes, load_recipe
from selfverify.policy.loading import resolve
from selfverify.tasks.word_sums import WordSums


class Shop(WordSums):
    """A task of somebody else."""

    name = "shop"


class Copy(WordSums):
    """A task whose name is taken."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType | Exception]]:
    """What is installed, by name; an exception is raised when its module is imported."""
    found: dict[str, ModuleType | Exception] = {}

    class Entry:
        def __init__(self, name: str) -> None:
            self.name, self.value = name, f"{name}_module"

        def load(self) -> ModuleType:
            module = found[self.name]
            if isinstance(module, Exception):
                raise module
            return module

    monkeypatch.setattr(config, "entry_points", lambda group: [Entry(name) for name in found])
    config.distributions.cache_clear()
    yield found
    config.distributions.cache_clear()


def module(**attributes: object) -> ModuleType:
    made = ModuleType("somebody")
    vars(made).update(attributes)
    return made


def test_tasks_and_recipes_of_a_distribution(
    installed: dict[str, ModuleType | Exception], tmp_path: Path
) -> None:
    (tmp_path / "buy.yaml").write_text("name: buy\n")
    installed["shop"] = module(TASKS=(Shop,), RECIPES=tmp_path)
    installed["empty"] = module()
    assert registry.all_tasks()["shop"] is Shop and registry.all_tasks().keys() > {"shop", "digits-pick"}
    assert builtin_recipes()["buy"] == tmp_path / "buy.yaml"


def test_a_broken_distribution_is_named_and_the_others_work(
    installed: dict[str, ModuleType | Exception], caplog: pytest.LogCaptureFixture
) -> None:
    installed["broken"] = ImportError("no module named spam")
    installed["shop"] = module(TASKS=[Shop])
    with caplog.at_level(logging.WARNING):
        assert registry.all_tasks()["shop"] is Shop
    told = "distribution broken (broken_module) cannot be used: ImportError: no module named spam"
    assert told in caplog.text


def weights(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    return folder


def test_weights_of_a_distribution(installed: dict[str, ModuleType | Exception], tmp_path: Path) -> None:
    installed["shop"] = module(WEIGHTS=weights(tmp_path, "buyer"))
    assert resolve("builtin:buyer") == str(tmp_path / "buyer") and resolve("builtin:digits").endswith(
        "digits"
    )
    with pytest.raises(ConfigError, match=r"no built-in policy 'seller'; built-in: buyer, .*smollm2"):
        resolve("builtin:seller")


def test_two_things_of_one_name_are_refused(
    installed: dict[str, ModuleType | Exception], tmp_path: Path
) -> None:
    (tmp_path / "adpo-digits.yaml").touch()
    installed["copy"] = module(
        TASKS=[Copy], WEIGHTS=weights(tmp_path, "digits"), RECIPES=tmp_path, SOURCES={"mcp": SourceConfig}
    )
    for thing, ask in (
        ("task 'word-sums'", registry.all_tasks),
        ("built-in policy 'digits'", lambda: resolve("builtin:looking")),
        ("recipe 'adpo-digits'", builtin_recipes),
        ("kind of sources 'mcp'", source_kinds),
    ):
        with pytest.raises(ConfigError, match=f"selfverify and the distribution copy both have a {thing}"):
            ask()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: resolve("builtin:phone-judge"),
        lambda: load_recipe("smartsnap-phone"),
        lambda: load_recipe("quickstart", ["task.name=phone"]),
        lambda: quickstart("smartsnap"),
        lambda: find_environment("phone"),
    ],
    ids=["weights", "recipe", "task", "quickstart", "environment"],
)
def test_what_is_not_installed_is_told_with_how_to_get_it(
    installed: dict[str, ModuleType | Exception], monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    monkeypatch.setattr(registry, "TASKS", registry.all_tasks())
    told = r"comes with a distribution .* not installed: pip install ./environments/phone"
    with pytest.raises(ConfigError, match=told):
        ask()
