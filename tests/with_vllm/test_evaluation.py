"""Evaluating through a real vLLM: a policy, its server, and a verifier of each turn there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.episode import PolicyTurn, RolloutHook
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import StoredSample, find_store, read_samples
from selfverify.policy.policy import Policy
from selfverify.visual.config import VisualConfig
from selfverify.visual.stopping import LOG_RATIO, LOG_RATIO_PLAN
from selfverify.visual.verifier import StepVerifier, StoppingVerifier
from visual.test_step_verifier import STEPS, question, shown
from with_vllm.conftest import Serving, serving


def measured(output: Path, *overrides: str) -> list[StoredSample]:
    words = ["eval", "adpo-digits", "policy.device=cpu", *overrides, "--output", str(output)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return sorted(read_samples(find_store(output))[1], key=lambda sample: sample.problem)


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
