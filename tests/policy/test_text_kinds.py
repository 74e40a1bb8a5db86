"""Text models of many kinds: samples and log-probs are the model's own, with shared prompts or without."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rounding import assert_close
from selfverify import TrainerConfig, learn, make_method, make_task
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.policy.chat import TooLongError
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tables import read_tables, yaml_cases
from tiny_models import write_checkpoint

TABLES: dict[str, Any] = read_tables(Path(__file__).with_suffix(".yaml"))
KINDS, SLOW, DRAWING, STRETCHED = (TABLES[name] for name in ("kinds", "slow", "drawing", "stretched"))
FREE = SamplingConfig(group_size=3, max_new_tokens=8, top_p=1.0)
GREEDY = SamplingConfig(group_size=1, max_new_tokens=8, temperature=0.0)
PROBLEMS = [
    Problem("long", user_turn("Add 3 and 4, then tell me what you think of it.", 0)),
    Problem("short", user_turn("Say 7.", 0)),
]


@pytest.fixture(scope="module")
def load_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Policy]:
    """``load_kind(kind, **settings)``: a policy of a tiny model, written once and loaded anew."""
    folders: dict[str, Path] = {}

    def load(kind: str, **settings: Any) -> Policy:
        if kind not in folders:
            tokenizer = tiny_tokenizer()
            about = {
                "vocab_size": -(-len(tokenizer) // 16) * 16,
                **TABLES["sizes"],
                **(DRAWING | KINDS | SLOW | STRETCHED).get(kind, {}),
            }
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **about))
            folders[kind] = write_checkpoint(tmp_path_factory.mktemp(kind), model, tokenizer)
        return Policy.load(str(folders[kind]), device="cpu", **settings)

    return load


def own_logprobs(policy: Policy, prompt: Any, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """``[R, V]``, and ``[R]`` those of the tokens, by the model as transformers loads it.

    Without a cache, in one row without padding.
    """
    model = AutoModelForCausalLM.from_pretrained(policy.config.path, attn_implementation="eager").eval()
    ids = torch.tensor([[*prompt.ids.tolist(), *tokens]])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    values = logits[0, len(prompt.ids) - 1 : -1].float().log_softmax(-1)
    return values, values.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("first", ["sample", "logprobs", "threads"])
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_samples_are_the_models_own(
    load_kind: Any, caplog: pytest.LogCaptureFixture, kind: str, first: str
) -> None:
    """Whichever is asked first. Greedy tokens are the likeliest of a forward without a cache."""
    if first != "sample" and kind not in ("qwen3_next", "diffllama", "gpt2"):
        pytest.skip("three kinds show it")
    policy = load_kind(kind)
    prompts = policy.encode(PROBLEMS)
    assert policy.shares_prefix is None
    state = torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING):
        if first == "logprobs":
            policy.logprobs(prompts, [[[]], [[]]])
        elif first == "threads":
            policy.threads(prompts, FREE, seeds=[0, 0])
        greedy = policy.sample(prompts, GREEDY, seeds=[0, 0])
    assert torch.equal(state, torch.random.get_rng_state())
    assert policy.shares_prefix is (kind in TABLES["share"])
    assert ("sharing is off" in caplog.text) == (kind not in TABLES["share"])
    assert TABLES["reasons"].get(kind, "") in caplog.text
    for prompt, [sample] in zip(prompts, greedy, strict=True):
        assert sample.tokens == own_logprobs(policy, prompt, sample.tokens)[0].argmax(-1).tolist()
    groups = policy.sample(prompts, FREE, seeds=[1, 2])
    learnt = policy.logprobs(prompts, [[sample.tokens for sample in group] for group in groups])
    for prompt, group, rows in zip(prompts, groups, learnt.detach(), strict=True):
        for sample, row in zip(group, rows, strict=True):
            _, expected = own_logprobs(policy, prompt, sample.tokens)
            assert float((torch.tensor(sample.logprobs) - expected).abs().max()) < 1e-3
            assert float((row[: len(expected)] - expected).abs().max()) < 1e-3


@pytest.mark.parametrize(
    "kind",
    ["qwen3_next", "gpt2", "falcon", *(pytest.param(kind, marks=pytest.mark.slow) for kind in DRAWING)],
)
def test_a_step_of_training_learns_on_policy(load_kind: Any, tmp_path: Path, kind: str) -> None:
    """Sampler and learner give a token the same log-prob: the ratio is 1 in the second epoch, too.

    Most of these have dropout of their own, or add noise while they learn, which is switched off.
    """
    policy = load_kind(kind)
    config = TrainerConfig(
        steps=1,
        groups_per_step=2,
        optim={"learning_rate": 1e-9, "warmup": 0},
        loss={"drop_zero_advantage": False},
        batch={"inner_epochs": 2},
        checkpoint={"every": 0},
    )
    learn(policy, make_task("word-sums"), make_method("grpo"), config, FREE, output=tmp_path)
    row = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"))
    assert row["tokens/trained"] > 0
    assert row["ratio_max"] == pytest.approx(1, abs=1e-3) and row["clip_share"] == 0


@pytest.mark.parametrize("kind", STRETCHED)
def test_what_a_row_says_does_not_depend_on_how_long_others_are(load_kind: Any, kind: str) -> None:
    """Beyond 64 tokens it would, so that no row is longer; up to there samples are the model's own."""
    policy = load_kind(kind)
    with pytest.raises(TooLongError, match="reads 64"):
        policy.encode([Problem("longer", user_turn("Add 3 and 4. " * 8, 0))])
    prompts = policy.encode(PROBLEMS)
    sampling = FREE.model_copy(update={"max_new_tokens": 60})
    groups = policy.sample(prompts, sampling, seeds=[1, 2])
    assert "length" in {sample.finish for group in groups for sample in group}
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            assert len(prompt.ids) + len(sample.tokens) <= 65  # the last token is not read
            assert sample.finish == "stop" or len(prompt.ids) + len(sample.tokens) >= 64
            _, expected = own_logprobs(policy, prompt, sample.tokens)
            assert_close(sample.logprobs, expected)


def test_all_policies_of_a_model_share_alike(load_kind: Any) -> None:
    """A reference is compared with what learns, so that both compute in the same way."""
    policy = load_kind("stablelm", lora={})
    reference = policy.frozen_copy()
    policy.sample(policy.encode(PROBLEMS), GREEDY, seeds=[0, 0])
    assert reference.shares_prefix is False and policy.frozen_copy().shares_prefix is False
    whole = load_kind("gpt2")
    whole.sample(whole.encode(PROBLEMS), GREEDY, seeds=[0, 0])
    assert whole.frozen_copy().shares_prefix is True


@yaml_cases
def test_models_that_cannot_be_used_are_refused(load_kind: Any, kind: str, problem: str) -> None:
    """One reads in both directions; what the next one's head does is not known here; the last one's cache
    confuses the samples of a group."""
    policy = load_kind(kind)
    with pytest.raises(ConfigError, match=rf"policy\.path=.*'{kind}'.*{problem}"):
        policy.sample(policy.encode(PROBLEMS), FREE, seeds=[1, 2])
