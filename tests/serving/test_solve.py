"""`selfverify solve`, with a model of its own and with one behind a server."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from data_files import huge_png
from sampled_threads import drawn, sampled_threads
from selfverify.cli.main import app
from selfverify.clients.openai_client import ModelOnServer, ServerConfig
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import opening, rollout
from selfverify.rollouts.script_sampler import recite
from selfverify.selection.calibration import Calibration
from selfverify.selection.strategies import StrategyConfig
from selfverify.serving.backend import FreeQuestion, free_problem, reply_of
from selfverify.serving.config import ChoosingConfig, DrawsConfig
from selfverify.serving.solve import solve
from selfverify.tasks.answering import SelfCorrection
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import verify
from selfverify.verifiers.make_verifier import make_verifier
from selfverify.verifiers.policy_verifiers import Inline
from selfverify.verifiers.server_judge import ServerJudge
from serving_servers import Body, FakeUpstream, Loop, tagged
from tables import yaml_cases


@pytest.fixture
def scripted(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The policy writes these answers, one after the other, with these scores; fill in ``answer|score``."""
    script: list[str] = []

    def sample(prompts: Any, sampling: SamplingConfig, *, seeds: list[int]) -> list[list[Sample]]:
        said = [script.pop(0).partition("|") for _ in range(sampling.group_size)]
        return [[drawn(policy, tagged(answer, score)) for answer, _, score in said]]

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    monkeypatch.setattr(Policy, "load", lambda *_, **__: policy)
    return script


def test_solve_a_task(policy: Policy, scripted: list[str]) -> None:
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)
    scripted += ["1 2 3|0.2", "9 9 9|0.9", "3 2 1|0.3", "nonsense|1.0"]
    seen: list[Any] = []
    choosing = ChoosingConfig(n=4, strategy="best")
    found = solve(policy, task, problem, Inline(), choosing, DrawsConfig(), on_candidate=seen.append)
    assert [c.key for c in found.candidates] == ["1 2 3", "9 9 9", "1 2 3", None]
    assert (found.choice.index, found.choice.answer, found.choice.score) == (1, [9, 9, 9], 0.9)
    assert seen == found.candidates
    assert (found.stopped, found.correct, found.abstained) == ("samples", False, False)
    assert found.tokens == sum(c.tokens for c in seen)
    assert json.loads(json.dumps(found.as_json()))["choice"]["answer"] == [9, 9, 9]


def test_solve_stops_early_and_abstains(policy: Policy, scripted: list[str]) -> None:
    scripted += ["1 2 3|0.2"] * 8
    problem = free_problem("Which?", [Image.new("RGB", (32, 32))])
    doubtful = Calibration("isotonic", (0.0, 1.0), (0.0, 0.5), threshold=0.3)
    choosing = ChoosingConfig(stop="beta")
    found = solve(policy, FreeQuestion("set"), problem, Inline(), choosing, DrawsConfig(), doubtful)
    assert (len(found.candidates), found.stopped) == (4, "confident")
    assert found.probability == pytest.approx(0.1)
    assert found.abstained and found.correct is None


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["solve", *words])


def test_a_tasks_image_round_trips(tmp_path: Path, scripted: list[str]) -> None:
    """What --save-image writes is what the task showed, and can be asked about."""
    path = tmp_path / "pick.png"
    shown = run("--task", "digits-pick", "--index", "3", "--save-image", str(path))
    problem = make_task("digits-pick").problem("test", 0, 3)
    assert shown.stdout.strip() == problem.meta["question"]
    image = Image.open(path)
    assert image.convert("RGB").tobytes() == problem.images[0].convert("RGB").tobytes()
    asked = free_problem(shown.stdout, [image])
    assert asked.messages == problem.messages
    scripted += ["1 2 3|0.5", "3 2 1|0.5"]
    shown = run("--image", str(path), "--answers", "set", "-n", "2", "--verifier", "inline", "Pick 3.")
    assert "2 of 2 candidates gave it" in " ".join(shown.output.split())


@yaml_cases
def test_bad_requests(words: list[str], complaint: str, scripted: list[str], tmp_path: Path) -> None:
    (tmp_path / "note.png").write_bytes(b"no image")
    (tmp_path / "huge.png").write_bytes(huge_png(20_000, 20_000))
    shown = run(*[word.format(note=tmp_path / "note.png", huge=tmp_path / "huge.png") for word in words])
    assert shown.exit_code == 2
    assert complaint in " ".join(shown.output.split())


def test_a_calibration_is_used_only_for_what_it_was_fitted_for(tmp_path: Path, scripted: list[str]) -> None:
    path = tmp_path / "calibration.json"
    about = {
        "verifier": "inline",
        "strategy": "best",
        "options": asdict(StrategyConfig()),
        "samples_per_problem": 2,
    }
    Calibration("isotonic", (0.0, 1.0), (0.0, 0.5), fitted_on=about).save(path)
    scripted += ["1 2 3|0.2", "4 5 6|0.8"]
    asked = ["--task", "digits-pick", "--verifier", "inline", "--strategy", "best", "-n", "2"]
    fine = run(*asked, "--calibration", str(path))
    assert "right with probability 0.40" in fine.output, fine.output
    for other, complaint in (
        (["--verifier", "soft"], "verifier 'inline'"),
        (["-n", "3"], "samples_per_problem 2"),
        (["--stop", "beta"], "early stopping"),
    ):
        shown = run(*asked, *other, "--calibration", str(path))
        assert shown.exit_code == 2 and complaint in " ".join(shown.output.split())


def test_solve_in_two_turns(policy: Policy) -> None:
    """Second answers are the candidates; the first ones are shown beside them."""
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)
    asked: Any = make_task("digits-pick")
    sampling = SamplingConfig(group_size=3, max_new_tokens=12)
    begin, limits = opening(asked, "Check the answer.")
    sampler = PolicySampler(policy, sampling)
    made = rollout(sampler, asked, [problem], [0], sampling.group_size, open_episode=begin, limits=limits)
    found = solve(
        policy, task, problem, Inline(), ChoosingConfig(n=3),
        DrawsConfig(max_new_tokens=12, turns=2, second_turn="Check the answer."),
    )  # fmt: skip
    rolled = made.groups[0].trajectories
    assert [c.text for c in found.candidates] == [t.text for t in rolled]
    assert [c.tokens for c in found.candidates] == [t.written for t in rolled]


def test_candidates_of_two_turns_by_hand(policy: Policy) -> None:
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)

    first = drawn(policy, tagged("1 2 3"), logprob=-2.0)
    second = drawn(policy, tagged("4 5 6"))
    asked = SelfCorrection(problem, task.tags, task.verdict, "Check the answer.", split_score=True)
    made = recite(policy, problem, asked, [first, second])
    candidate = reply_of(made, "sampled")
    assert (candidate.first, candidate.answer) == ([1, 2, 3], [4, 5, 6])
    assert (candidate.score, candidate.logprob) == (0.5, -0.5)
    assert candidate.tokens == len(first.tokens) + len(second.tokens), "what was inserted was not written"


# --- behind a server ----------------------------------------------------------------------------------------


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


def groups() -> list[Group]:
    def trajectory(answer: str, readable: bool = True) -> Trajectory:
        text = f"<think>.</think><answer>{answer}</answer><score>"
        parsed = Verdict(0.0, False, answer if readable else None, answer)
        return Trajectory([Segment("answer", [1], text=text, parsed=parsed)], parsed=parsed)

    problem = free_problem("Which?", [Image.new("RGB", (8, 8))])
    return [Group(problem, [trajectory("7"), trajectory("9"), trajectory("", False)])]


def write(body: Body, i: int) -> str:
    return "<score>0.9</score>" if "7" in body["messages"][1]["content"] else "<score>0.1</score>"


def test_a_judge_behind_a_server(servers: Loop, policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """An answer that it fails on has no score, and the log says so; failing on all is an error."""
    lost: list[str] = []

    def fault(body: Body) -> int | None:
        return 400 if any(answer in body["messages"][1]["content"] for answer in lost) else None

    fake = FakeUpstream(write=write, fault=fault, knows_logprobs=False)
    judge = make_verifier(f"judge:{servers.upstream(fake)}#m", policy)
    found = groups()
    assert verify(found, judge) == [[0.9, 0.1, None]]
    assert found[0].trajectories[0].scores[judge.name] == 0.9
    assert all("<score>" not in body["messages"][1]["content"] for body in fake.seen)
    assert fake.seen[0]["messages"][0]["content"][0]["type"] == "image_url"
    lost.append("9")
    assert judge.score(groups()) == [[0.9, None, None]]
    assert "answer 1 of problem question" in caplog.text and "the judge failed (400" in caplog.text
    gone = ServerJudge(ModelOnServer(ServerConfig("http://127.0.0.1:9", wait_s=0.01), "m"))
    with pytest.raises(ServerError, match="reached"):
        gone.score(groups())
    with pytest.raises(ConfigError, match="URL#MODEL"):
        ServerJudge.of("http://127.0.0.1:9", "judge:http://127.0.0.1:9")
