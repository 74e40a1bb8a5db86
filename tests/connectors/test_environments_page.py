"""docs/environments.md and examples/environments.yaml say what there is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.connectors import server
from selfverify.connectors.serving_config import KEYS_VARIABLE, EnvironmentServing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "examples" / "environments.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_what_the_page_imports_is_there_and_takes_these_arguments(number: int) -> None:
    """Names are imported and calls of classes bind."""
    tree = ast.parse(blocks("python")[number])
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            known |= {alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name), arguments, keywords) if inspect.isclass(known.get(name)):
                named = {keyword.arg: None for keyword in keywords if keyword.arg is not None}
                if len(named) == len(keywords):
                    inspect.signature(known[name]).bind(*[None] * len(arguments), **named)


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
