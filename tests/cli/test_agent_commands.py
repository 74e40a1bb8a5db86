"""`selfverify agent`: environments are served by name, and what the terminal shows of a session."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from commands import command
from selfverify.connectors import server
from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment
from selfverify.connectors.pool import KEYS_VARIABLE, EnvironmentServerConfig
from selfverify.core.episode import Call
from tables import yaml_cases

COMMAND = [sys.executable, "-m", "selfverify", "agent"]


def started(*arguments: str) -> subprocess.Popen[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables
    )


def test_the_phone_is_served() -> None:
    process = started("serve", "phone", "counter=tiny_environment:Counter", "--port", "0")
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "serves phone, counter" in line
        [url] = re.findall(r"http://\S+", line)

        async def use() -> None:
            phone = RemoteEnvironment(RemoteConfig(url + "/phone"))
            await phone.open()
            assert "launch" in [tool["function"]["name"] for tool in phone.tools]
            await phone.close()
            counter = RemoteEnvironment(RemoteConfig(url + "/counter"))
            await counter.reset({"goal": 3}, seed=1)
            assert (await counter.step(Call("add", {"number": 2}))).done
            await counter.close()

        asyncio.run(use())
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0 and "stopping; 0 sessions are open" in rest
    finally:
        process.kill()


@yaml_cases
def test_what_cannot_be_served_is_said(arguments: list[str], message: str) -> None:
    assert message in command("agent", *arguments, code=2).output


def test_a_session_is_shown_and_its_page_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["agent", "run", "--template", "contacts-ask-phone", "--seed", "3", "--hostile", "--expert"]
    result = command(*asked, "--output", str(page))
    for words in ("asked: ", "round 1", "launch(app='contacts')", "submit(", "vote 1: success", "done"):
        assert words in result.output
    written = page.read_text("utf-8")
    assert "reward: 0.95" in result.output and "A script that knows the way" in written
    assert "✓ done" in written and written.count("<section") > 2
    assert all(c.isprintable() or c == "\n" for c in result.output)


# --- what the docs and the example say ----------------------------------------------------------------------


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "examples" / "environments.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def served(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> EnvironmentServerConfig:
    found: list[EnvironmentServerConfig] = []

    async def keep(settings: EnvironmentServerConfig, *_: Any) -> None:
        found.append(settings)

    monkeypatch.setattr(server, "serve_until_told", keep)
    command(*line[1:])
    return found[0]


def test_commands_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if " serve " in line]
    found = [served(monkeypatch, shlex.split(line)) for line in lines]
    assert [settings.environments for settings in found] == [["phone"], ["shop=my_package.shop:Shop"]]


def test_devices_are_served_by_the_options_of_their_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[Any] = []

    async def keep(settings: EnvironmentServerConfig, ready: Any, known: Any) -> None:
        found.append(known["android"]())

    monkeypatch.setattr(server, "serve_until_told", keep)
    page = (ROOT / "docs" / "android.md").read_text(encoding="utf-8")
    (tmp_path / "devices.yaml").write_text(page.partition("```yaml\n# devices.yaml\n")[2].partition("```")[0])
    line = ["agent", "serve", "android", "--options", str(tmp_path / "devices.yaml"), "--sessions", "2"]
    command(*line)
    assert found[0].tools[0]["function"]["name"] == "get_current_xml"


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
