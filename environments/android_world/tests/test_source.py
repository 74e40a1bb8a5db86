"""The kind ``android-world`` of recipes: found among what is installed, and one session."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import selfverify_android_world
from selfverify.agents import environment_task
from selfverify.agents.environment_task import EnvironmentAgentsConfig
from selfverify.core.config import distributions
from selfverify_android_world import AndroidWorldSource


def test_it_is_found_where_it_is_installed() -> None:
    assert distributions()["android-world"] is selfverify_android_world


def test_recipes_name_it_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_task, "distributions", lambda: {"x": selfverify_android_world})
    config = EnvironmentAgentsConfig(sources=[{"kind": "android-world", "url": "http://x:1"}])
    [source] = config.sources
    made = source.make()
    assert isinstance(made, AndroidWorldSource) and made.sessions == 1
    assert config.model_dump()["sources"] == [{"kind": "android-world", "sessions": 1, "url": "http://x:1"}]
    for wrong in ({}, {"url": "http://x:1", "sessions": 2}, {"url": "http://x:1", "port": 1}):
        with pytest.raises(ValidationError, match=r"sources\.0\.(url|sessions|port)\n"):
            EnvironmentAgentsConfig(sources=[{"kind": "android-world", **wrong}])
