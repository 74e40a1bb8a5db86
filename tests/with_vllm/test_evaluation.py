"""Evaluating through a real vLLM: a policy, its server, and a verifier of each turn there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from reproduce.matrix import app as matrix
from reproduce.pairs import JudgedProblem
from selfverify.cli.main import app
from selfverify.core.episode import PolicyTurn, RolloutHook
from selfverify.core.jsonl_store import read_journal
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import StoredSample, find_store, read_samples
from selfverify.policy.policy import Policy
from selfverify.visual.config import VisualConfig
from selfverify.visual.stopping import LOG_RATIO, LOG_RATIO_PLAN
from selfverify.visual.verifier import StepVerifier, StoppingVerifier
from visual.test_step_verifier import STEPS, question, shown
from with_vllm.conftest import Serving, serving

NAMES = ("here", "there")


def run(*words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def measured(output: Path, *overrides: str) -> list[StoredSample]:
    run("eval", "adpo-digits", "policy.device=cpu", *overrides, "--output", str(output))
    return sorted(read_samples(find_store(output))[1], key=lambda sample: sample.problem)


def place(problem: str) -> int:
    """Which of the problems it is, by the end of its name."""
    return int(problem.rpartition("/")[2])


def test_greedy_samples_are_those_of_the_policy(vllm_server: Serving, tmp_path: Path) -> None:
    """Text, verdict, score and log-probability of 32 problems with images."""
    same = ["evaluation.problems=32", "evaluation.samples=1", "evaluation.temperature=0"]
    own = measured(tmp_path / "own", *same)
    there = measured(tmp_path / "there", *same, f"policy.path={vllm_server.url}#m")
    for ours, theirs in zip(own, there, strict=True):
        assert ours.text == f"{theirs.text}<|im_end|>"
        for name in ("problem", "key", "correct", "rewards", "tokens", "finish", "seed"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert theirs.scores["sampled"] == ours.scores["sampled"]
        assert theirs.scores["soft"] == pytest.approx(ours.scores["soft"], abs=1e-3)
        assert theirs.logprob == pytest.approx(ours.logprob, abs=1e-3)


def test_it_answers_and_judges_in_a_matrix(vllm_server: Serving, tmp_path: Path) -> None:
    """Beside the same model here, which reads in the server's words the scores that the server has told."""
    models = ["here=builtin:digits", f"there={vllm_server.url}#m"]
    sets = ["evaluation.problems=16", "evaluation.samples=4", "policy.device=cpu"]
    words = [*models, *[f"--set={each}" for each in sets], "--sizes", "1,4", "--output", str(tmp_path)]
    done = CliRunner().invoke(matrix, words)
    assert done.exit_code == 0, done.output
    # A server's samples are stored as they come.
    samples = sorted(read_samples(tmp_path / "there.jsonl")[1], key=lambda sample: place(sample.problem))
    told = [sample.scores["soft"] for sample in samples]
    by = {}
    for name in NAMES:
        rows = read_journal(tmp_path / f"there-by-{name}.jsonl", JudgedProblem)[1]
        by[name] = [score for index in sorted(rows) for score in rows[index].scores]
    assert len(told) == 64 and told == pytest.approx(by["here"], abs=1e-3)
    # A server judges in a turn of its own, which this model has not been taught: it answers once more.
    assert all(0 <= score <= 1 for score in by["there"] if score is not None)
    assert sum(score is not None for score in by["there"]) >= 48
    cells = json.loads((tmp_path / "matrix.json").read_text())["cells"]
    assert {(cell["generator"], cell["verifier"]) for cell in cells} >= {(a, b) for a in NAMES for b in NAMES}


# --- verifiers ----------------------------------------------------------------------------------------------


RATIOS = (LOG_RATIO, LOG_RATIO_PLAN)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """vLLM before a verifier: `builtin:digits` after something that was like a training."""
    folder = tmp_path_factory.mktemp("tuned") / "digits"
    policy = Policy.load("builtin:digits", device="cpu")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.model.get_decoder().parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    policy.save(folder)
    with serving(folder, "--max-model-len", "1024") as found:
        yield found


def heard(listener: RolloutHook, policy: Policy) -> list[PolicyTurn]:
    """Three turns with images between them; the second is taken back and said anew."""
    listener.begin({(0, 0): question(1)})
    turns = []
    for number, text in enumerate([STEPS[0], STEPS[1], STEPS[1].replace("2 0 0", "1 1 1"), STEPS[2]]):
        # Without the token that ends a message, which a server does not score.
        tokens = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        words = PolicyTurn(text, tokens, Finish.LENGTH, number - (number > 1))
        listener.said({(0, 0): words})
        turns.append(words)
        reply = shown(number)
        reply.undo = number == 1
        listener.shown({(0, 0): reply})
    return turns


def test_log_ratios_of_each_turn(vllm_server: Serving, tuned: Serving) -> None:
    """V_φ and V_φ0 behind servers, against both in this process, with images in mid-conversation."""
    base = Policy.load("builtin:digits", device="cpu")
    verifier = Policy.load(str(tuned.folder), device="cpu")
    here = heard(StepVerifier(verifier, base, base), base)
    settings = VisualConfig(verifier=f"{tuned.url}#m", verifier_base=f"{vllm_server.url}#m")
    listener = StoppingVerifier(settings).listener(None)
    assert listener is not None
    there = heard(listener, base)
    for ours, theirs in zip(here, there, strict=True):
        assert abs(ours.values[LOG_RATIO]) > 0.05
        assert [theirs.values[n] for n in RATIOS] == pytest.approx([ours.values[n] for n in RATIOS], abs=5e-3)
