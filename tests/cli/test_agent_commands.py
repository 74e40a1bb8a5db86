"""`selfverify agent`: environments are served by name, and what the terminal shows of a session."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.connectors.openenv import RemoteConfig, RemoteEnvironment
from selfverify.core.episode import Call

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "tablet"], "known by name are"),
        (["serve", "a=b"], "one looks like"),
        (["serve", "counter=tiny_environment:Counter", "--host", "0.0.0.0"], "SELFVERIFY_ENVIRONMENT_KEYS"),
    ],
)
def test_what_cannot_be_served_is_said(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["agent", *arguments])
    assert result.exit_code == 2 and message in result.output.replace("\n", " ")


def test_a_session_is_shown_and_its_page_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["agent", "run", "--template", "contacts-ask-phone", "--seed", "3", "--hostile", "--expert"]
    result = CliRunner().invoke(app, [*asked, "--output", str(page)])
    assert result.exit_code == 0, result.output
    for words in ("asked: ", "round 1", "launch(app='contacts')", "submit(", "vote 1: success", "done"):
        assert words in result.output
    assert "reward: 0.95" in result.output and page.is_file()
    assert all(c.isprintable() or c == "\n" for c in result.output)


def test_faults_are_said_in_a_line() -> None:
    for arguments, why in (
        (["--template", "clock-ad", "--expert"], "did you mean clock-add"),
        (["Set an alarm."], "say who acts"),
        (["--template", "clock-add", "--model", "/nowhere"], "/nowhere"),
    ):
        result = CliRunner().invoke(app, ["agent", "run", *arguments])
        assert result.exit_code != 0
        assert why in result.output + str(result.exception)
