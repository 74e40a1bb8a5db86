"""`selfverify solve --look`: models behind servers and models that run here look again with tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.serving.test_looking_gate import STEP, looks_once
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.policy_config import AdapterConfig
from serving_servers import Body, FakeUpstream, Loop, tagged

ALL = (
    "crop", "zoom_in", "grounding", "visual_search", "depth", "ocr", "segment", "caption", "similarity",
    "overlay", "terminate",
)  # fmt: skip


def run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words])


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "street.png"
    Image.new("RGB", (64, 64), "white").save(path)
    return str(path)


def looked(servers: Loop, picture: str, fake: FakeUpstream, *words: str) -> Any:
    """What one candidate of a server comes to, as JSON."""
    asked = ["--look", "--server", servers.upstream(fake), "--image", picture, "What?", "-n", "1", "--json"]
    shown = run("solve", *asked, *words)
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_a_server_looks_again(servers: Loop, picture: str) -> None:
    """The crop goes back to it as an image behind its own words, and what it did is told."""
    fake = FakeUpstream(write=looks_once, knows_logprobs=False)
    words = ["--look", "--server", servers.upstream(fake), "--image", picture, "What?", "-n", "2"]
    shown = run("solve", *words)
    assert shown.exit_code == 0, shown.output
    assert "answer: 9" in shown.output and "step 1: crop image_index 1" in " ".join(shown.output.split())
    first = min(fake.seen, key=lambda body: len(body["messages"]))
    assert "tools" not in first and '"name": "crop"' in first["messages"][0]["content"][-1]["text"]
    assert {body["seed"] for body in fake.seen} == {0, 1} and {body["model"] for body in fake.seen} == {"m"}
    record = json.loads(run("solve", *words, "--json").stdout)
    assert [[step["tool"] for step in steps] for steps in record["looks"]] == [["crop"], ["crop"]]
    assert record["choice"]["answer"] == "9" and record["candidates"][0]["score"] == 0.7


def test_a_verifier_that_runs_here_stops_a_server(
    servers: Loop, picture: str, load_policy: Any, tmp_path: Path
) -> None:
    """With a new adapter Δr is 0 and looking ends at once; with a low ε of the signed rule it goes on."""
    folder = tmp_path / "verifier"
    load_policy(lora=AdapterConfig(rank=4)).save(folder)

    def told(body: Body, number: int) -> str:
        words = json.dumps(body["messages"][-1]["content"])
        return tagged("9", "0.7") if "answer the question now" in words else STEP

    fake = FakeUpstream(write=told, knows_logprobs=False)
    words = ["--stop-looking", "verifier", "--stop-verifier", str(folder), "--max-steps", "3"]
    [steps] = looked(servers, picture, fake, *words, "--epsilon", "0.1")["looks"]
    assert [(step["delta_r"], step["stopped"]) for step in steps] == [(0.0, "rule")]
    [steps] = looked(servers, picture, fake, *words, "--stop-rule", "signed", "--epsilon", "-0.1")["looks"]
    assert len(steps) > 1 and all(step["delta_r"] in (0.0, None) for step in steps)
    assert all(step["stopped"] != "rule" for step in steps)
    with pytest.raises(AssertionError, match="no ε"):
        looked(servers, picture, fake, *words)


def test_a_model_that_runs_here() -> None:
    """It need not call anything."""
    words = ["--task", "digits-pick", "--index", "3", "--look", "-n", "2", "--tool", "crop"]
    record = json.loads(run("solve", *words, "--max-new-tokens", "16", "--json").stdout)
    assert len(record["candidates"]) == 2 and record["looks"] == [[], []]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-steps", "2"], "--max-steps needs --look"),
        (["--look", "--turns", "2"], "take one"),
        (["--look", "--server", "http://127.0.0.1:9", "--stop", "beta"], "draws all candidates"),
        (["--look", "--tool", "rotate"], "no tool 'rotate'"),
        (["--look", "--stop-looking", "delta"], "no rule 'delta'"),
    ],
)
def test_settings_that_do_not_go_together(words: list[str], said: str) -> None:
    """Each is named before anything is asked."""
    shown = run("solve", "--task", "digits-pick", *words)
    assert shown.exit_code == 2 and said in " ".join(shown.output.split())


def test_the_list_of_tools() -> None:
    """Each tool says whether it is available here."""
    shown = run("visual")
    assert shown.exit_code == 0 and all(name in shown.output for name in ALL)
    assert "no model is named" in " ".join(shown.output.split())
    words = ["solve", "--task", "digits-pick", "--look", "--tool", "depth", "--depth-model", "/nowhere"]
    refused = " ".join(run(*words).output.split())
    assert "depth_model: /nowhere is no folder" in refused
