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
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.config import option_name
from selfverify.serving.config import ServeConfig, SolveConfig
from serving_servers import FakeUpstream, Loop, question


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


UPSTREAM = ["--upstream", "http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "either --model"),
        (["--model", "builtin:digits", "--upstream", "http://127.0.0.1:9"], "either --model"),
        (["--upstream", "nonsense"], "no address"),
        ([*UPSTREAM, "--verifier", "greedy"], "no verifier 'greedy'"),
        ([*UPSTREAM, "--judge", "judge:m"], "--judge needs --model"),
        (["--model", "builtin:digits", "--separate"], "--separate needs --upstream"),
        ([*UPSTREAM, "--api-key-file", "/missing"], "cannot be read"),
        ([*UPSTREAM, "--api-key", "a", "--api-key-file", "b"], "there is one key"),
        ([*UPSTREAM, "--api-key", " "], "--api-key is empty"),
        ([*UPSTREAM, "--calibration", "/missing"], "cannot be read"),
        (["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.serving.server.run", lambda main: pytest.fail("it serves"))
    shown = CliRunner().invoke(app, ["serve", *words])
    assert shown.exit_code == 2 and text in " ".join(shown.output.split())


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core install says what is missing."""
    for name in ("aiohttp", "openai", "yarl"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "selfverify.clients.openai_client", None)
    monkeypatch.delitem(sys.modules, "selfverify.clients.openai_client")
    for words in (["serve", *UPSTREAM], ["solve", "--server", UPSTREAM[1], "x"]):
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 2 and "selfverify[serve]" in " ".join(shown.output.split())


def test_an_own_model_answers_without_the_extra() -> None:
    """`selfverify solve` with a model of its own needs no client or server."""
    program = (
        "import sys; missing = 'aiohttp', 'openai', 'prometheus_client', 'yarl'; "
        "sys.modules |= dict.fromkeys(missing); "
        "from selfverify.cli.main import app; app(sys.argv[1:])"
    )
    words = ["solve", "--task", "digits-pick", "-n", "1", "--max-new-tokens", "2"]
    shown = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert shown.returncode == 0 and "1 candidates" in shown.stdout, shown.stderr


def test_a_port_that_is_taken(servers: Loop, tmp_path: Path) -> None:
    url = servers.upstream(FakeUpstream())
    port = url.rpartition(":")[2]
    shown = CliRunner().invoke(app, ["serve", "--upstream", url, "--port", port])
    assert shown.exit_code == 2 and "cannot be opened" in " ".join(shown.output.split())


# --- settings -----------------------------------------------------------------------------------------------


HERE = {"backend": {"model": "m"}}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"asked": {}}, "a question is missing"),
        ({"asked": {"question": "x", "save_image": "x.png"}}, "a question is missing"),
        ({"asked": {"question": "x", "task": "digits-pick"}}, "--task brings its own"),
        ({"asked": {"image": ["x.png"], "task": "digits-pick"}}, "--task brings its own"),
        ({"answerer": {"server": "s"}, "drawing": {"turns": 2}}, "--turns 2 needs a model"),
        ({"answerer": {"server": "s"}, "choosing": {"n": 257}}, "at most 256"),
        ({"choosing": {"n": 1025}}, "1024"),
        ({"choosing": {"strategy": "oracle"}}, "analysis only"),
        ({"choosing": {"calibration": "c", "stop": "beta"}}, "full sets of samples"),
        ({"choosing": {"calibration": "c", "budget_tokens": 9}}, "full sets of samples"),
    ],
)
def test_solve(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SolveConfig.model_validate({"asked": {"question": "x"}} | fields)


def leaves(model: type[BaseModel]) -> list[str]:
    """The names of all settings as options, with those of nested models."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        nested = isinstance(kind, type) and issubclass(kind, BaseModel)
        found += leaves(kind) if nested else [option_name(name, field)]  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("model", [SolveConfig, ServeConfig])
def test_every_setting_can_be_an_option(model: type[BaseModel]) -> None:
    """No name comes twice."""
    names = leaves(model)
    assert len(names) == len(set(names))
