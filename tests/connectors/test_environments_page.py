"""docs/environments.md and examples/environments.yaml say what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.connectors import server
from selfverify.connectors.pool import KEYS_VARIABLE, EnvironmentServing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "examples" / "environments.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def served(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> EnvironmentServing:
    found: list[EnvironmentServing] = []

    async def keep(settings: EnvironmentServing, *_: Any) -> None:
        found.append(settings)

    monkeypatch.setattr(server, "serve_until_told", keep)
    result = CliRunner().invoke(app, line[1:])
    assert result.exit_code == 0, result.output
    return found[0]


def test_commands_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if " serve " in line]
    found = [served(monkeypatch, shlex.split(line)) for line in lines]
    assert [settings.environments for settings in found] == [["phone"], ["shop=my_package.shop:Shop"]]


def test_the_manifest_starts_a_server_that_kubernetes_can_check(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, service = YAML(typ="safe").load_all(MANIFEST)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    settings = served(monkeypatch, container["command"] + container["args"])
    assert settings.host == "0.0.0.0" and settings.environments == ["phone"]
    assert container["ports"][0]["containerPort"] == settings.port == service["spec"]["ports"][0]["port"]
    assert container["env"][0]["name"] == KEYS_VARIABLE
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {
        "/health"
    }
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
