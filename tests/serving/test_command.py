"""`selfverify serve` and its settings: where it listens, how it stops, and what is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import ValidationError
from typer.main import get_command

from commands import command
from selfverify.cli.main import app
from selfverify.serving.config import SolveConfig
from serving_servers import FakeUpstream, Loop, question
from tables import yaml_cases


def test_it_serves_and_finishes_what_it_began(servers: Loop, tmp_path: Path) -> None:
    fake = FakeUpstream(delay_s=1.0)
    words = ["serve", "--upstream", servers.upstream(fake), "--port", "0", "--grace", "20"]
    key = tmp_path / "key"
    key.write_text("two\n")
    words += ["--api-key-file", str(key)]
    process = subprocess.Popen(
        [sys.executable, "-m", "selfverify", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+/v1", process.stderr.readline())
        assert found
        answers: list[Any] = []

        def ask() -> None:
            headers = {"Authorization": "Bearer two"}
            url = f"{found[0]}/chat/completions"
            answers.append(requests.post(url, json=question(), headers=headers, timeout=30))

        assert requests.post(f"{found[0]}/chat/completions", json=question(), timeout=30).status_code == 401
        asking = threading.Thread(target=ask)
        asking.start()
        for _ in range(1000):
            if fake.open:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        asking.join(30)
        assert answers[0].status_code == 200 and answers[0].json()["best_of"]["samples_used"] == 8
        assert process.wait(30) == 0
        log = process.stderr.read()
        assert "stopping; 1 requests in flight" in log and "7+2" not in log
        assert re.findall(r"POST /v1/chat/completions (\d+) ", log) == ["401", "200"]
    finally:
        process.kill()
        process.wait()


@yaml_cases
def test_what_cannot_work_is_refused(words: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.serving.server.run", lambda main: pytest.fail("it serves"))
    assert text in command("serve", *words, code=2).output


# --- settings -----------------------------------------------------------------------------------------------


@yaml_cases
def test_solve(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SolveConfig.model_validate({"asked": {"question": "x"}} | fields)


@pytest.mark.parametrize("command", ["solve", "serve"])
def test_no_option_comes_twice(command: str) -> None:
    options = [name for option in get_command(app).commands[command].params for name in option.opts]  # type: ignore[attr-defined]
    assert "--strategy" in options and len(options) == len(set(options))
