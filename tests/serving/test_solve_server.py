"""`selfverify solve --server`, and a judge behind a server."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.clients.openai_client import ModelOnServer, ServerConfig
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.problem import Problem, openai_messages
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.serving.backend import free_problem
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import verify
from selfverify.verifiers.make_verifier import make_verifier
from selfverify.verifiers.server_judge import ServerJudge
from serving_servers import Body, FakeUpstream, Loop, tagged


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["solve", *words])


def test_a_question(servers: Loop, tmp_path: Path) -> None:
    fake = FakeUpstream(write=lambda body, i: tagged("79"[i % 2], f"0.{i}"), knows_logprobs=False)
    url = servers.upstream(fake)
    path = tmp_path / "cat.png"
    Image.new("RGB", (8, 8)).save(path)
    shown = run(
        "--server", url, "--image", str(path), "What?", "-n", "4", "--strategy", "best", "--seed", "3"
    )
    assert shown.exit_code == 0, shown.output
    assert "answer: 9" in shown.output and "highest score 0.30" in shown.output
    body = fake.seen[-1]
    assert (body["model"], body["n"], body["seed"], body["max_tokens"]) == ("m", 4, 3, 256)
    assert body["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    shown = run("--server", url, "--model", "m", "What?", "-n", "2", "--verifier", "inline", "--json")
    record = json.loads(shown.stdout)
    assert record["choice"]["answer"] == "9" and record["tokens"] == 14 and len(record["candidates"]) == 2


def test_a_model_of_the_default_name_can_be_asked_for(servers: Loop) -> None:
    """A gateway lists it twice, so that it has to be named."""
    fake = FakeUpstream()
    shown = run("--server", servers.upstream(fake), "--model", "builtin:digits", "What?")
    assert shown.exit_code == 2 and "`builtin:digits` does not exist" in " ".join(shown.output.split())
    assert {body["model"] for body in fake.seen} == {"builtin:digits"}


def test_a_task_reads_its_own_answers(servers: Loop) -> None:
    """Which are the same, and whether they are right."""
    problem = make_task("digits-pick").problem("test", 0, 3)
    digits = problem.meta["digits"]
    right = next(list(p) for p in itertools.permutations(digits, 3) if sum(p) == problem.target)
    answers = [" ".join(map(str, row)) for row in (right, right[::-1], [9, 9, 9])]
    fake = FakeUpstream(write=lambda body, i: tagged(answers[i]), knows_logprobs=False)
    task = ["--task", "digits-pick", "--index", "3"]
    shown = run("--server", servers.upstream(fake), *task, "-n", "3", "--strategy", "majority", "--json")
    record = json.loads(shown.stdout)
    assert record["choice"]["votes"] == 2 and record["choice"]["answer"] == sorted(right)
    assert record["correct"] is True


def test_no_server() -> None:
    shown = run("--server", "http://127.0.0.1:9", "What?", "--timeout", "1")
    assert shown.exit_code == 2 and "cannot be reached" in " ".join(shown.output.split())
    shown = run("--server", "nonsense", "What?")
    assert shown.exit_code == 2 and "address" in shown.output


def groups() -> list[Group]:
    def trajectory(answer: str, readable: bool = True) -> Trajectory:
        text = f"<think>.</think><answer>{answer}</answer><score>"
        parsed = Verdict(0.0, False, answer if readable else None, answer)
        return Trajectory([Segment("answer", [1], text=text, parsed=parsed)], parsed=parsed)

    problem = free_problem("Which?", [Image.new("RGB", (8, 8))])
    return [Group(problem, [trajectory("7"), trajectory("9"), trajectory("", False)])]


def write(body: Body, i: int) -> str:
    return "<score>0.9</score>" if "7" in body["messages"][1]["content"] else "<score>0.1</score>"


def test_a_judge_behind_a_server(servers: Loop, policy: Policy) -> None:
    fake = FakeUpstream(write=write, knows_logprobs=False)
    url = servers.upstream(fake)
    judge = make_verifier(f"judge:{url}#m", policy)
    found = groups()
    assert verify(found, judge) == [[0.9, 0.1, None]]
    assert found[0].trajectories[0].scores[judge.name] == 0.9
    assert all("<score>" not in body["messages"][1]["content"] for body in fake.seen)
    assert fake.seen[0]["messages"][0]["content"][0]["type"] == "image_url"


def test_a_judge_that_fails(servers: Loop, caplog: pytest.LogCaptureFixture) -> None:
    """On one answer: that has no score, and the log says so. On all: an error."""

    def fault(body: Body) -> int | None:
        return 400 if "9" in body["messages"][1]["content"] else None

    fake = FakeUpstream(write=write, fault=fault, knows_logprobs=False)
    judge = ServerJudge(ModelOnServer(ServerConfig(servers.upstream(fake), wait_s=0.01), "m"))
    assert judge.score(groups()) == [[0.9, None, None]]
    assert "answer 1 of problem question" in caplog.text and "the judge failed (400" in caplog.text
    judge = ServerJudge(ModelOnServer(ServerConfig("http://127.0.0.1:9", wait_s=0.01), "m"))
    with pytest.raises(ServerError, match="reached"):
        judge.score(groups())
    with pytest.raises(ConfigError, match="URL#MODEL"):
        ServerJudge.of("http://127.0.0.1:9", "judge:http://127.0.0.1:9")


def test_images_and_their_places() -> None:
    picture = Image.new("L", (4, 4))
    with pytest.raises(DataError, match="0 places for images and 1 images"):
        openai_messages(Problem("p", [{"role": "user", "content": "x"}], [picture]))
    with pytest.raises(DataError, match="1 places for images and 0 images"):
        openai_messages(Problem("p", [{"role": "user", "content": [{"type": "image"}]}], []))
