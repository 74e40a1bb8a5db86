"""`selfverify solve`: what it returns, what it prints, and how it fails."""

from __future__ import annotations

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
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import recite, roll_out
from selfverify.selection.calibration import Calibration
from selfverify.selection.strategies import StrategyConfig
from selfverify.serving.backend import FreeQuestion, free_problem, open_image
from selfverify.serving.best_of import Choosing
from selfverify.serving.config import DrawsConfig
from selfverify.serving.own_replies import reply_of
from selfverify.serving.solve import solve
from selfverify.tasks.answering import SelfCorrection
from selfverify.verifiers.policy_verifiers import Inline
from serving_servers import tagged


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
    choosing = Choosing(n=4, strategy="best")
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
    choosing = Choosing(stop="beta")
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
    image = open_image(path)
    assert image.convert("RGB").tobytes() == problem.images[0].convert("RGB").tobytes()
    asked = free_problem(shown.stdout, [image])
    assert asked.messages == problem.messages
    scripted += ["1 2 3|0.5", "3 2 1|0.5"]
    shown = run("--image", str(path), "--answers", "set", "-n", "2", "--verifier", "inline", "Pick 3.")
    assert "2 of 2 candidates gave it" in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--strategy", "bst", "Why?"], "no strategy 'bst'"),
        (["--stop", "soon", "Why?"], "'soon'"),
        (["--task", "grounding"], "reads files of its own"),
        (["--task", "digit-pick"], "no task 'digit-pick'"),
        (["--answers", "maths", "Why?"], "one of 'text'"),
        (["--image", "nowhere.png", "Why?"], "no such file"),
        (["--verifier", "guess", "Why?"], "no verifier 'guess'"),
        (["--vote-temperature", "0", "Why?"], "temperature"),
    ],
)
def test_bad_requests(words: list[str], complaint: str, scripted: list[str]) -> None:
    shown = run(*words)
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


def test_images_that_are_none_or_too_large(tmp_path: Path) -> None:
    (tmp_path / "note.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"note\.png"):
        open_image(tmp_path / "note.png")
    (tmp_path / "huge.png").write_bytes(huge_png(10_000, 10_000))
    with pytest.raises(DataError, match=r"huge\.png.*(pixels|size)"):
        open_image(tmp_path / "huge.png")


def test_solve_in_two_turns(policy: Policy) -> None:
    """Second answers are the candidates; the first ones are shown beside them."""
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)
    asked: Any = make_task("digits-pick")
    sampling = SamplingConfig(group_size=3, max_new_tokens=12)
    rollout = roll_out(policy, asked, [problem], [0], sampling, "Check the answer.")
    found = solve(
        policy, task, problem, Inline(), Choosing(n=3),
        DrawsConfig(max_new_tokens=12, turns=2, second_turn="Check the answer."),
    )  # fmt: skip
    rolled = rollout.groups[0].trajectories
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
