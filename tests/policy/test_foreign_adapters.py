"""Adapters that peft itself has written: each is computed, switched off and merged right, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.tuners.lora.layer import Linear
from transformers import AutoConfig, AutoModelForCausalLM

from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.policy.adapters import merged_parameters
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tables import yaml_cases
from tiny_models import disturb, write_checkpoint

PROBLEMS = [Problem("a", user_turn("Say 7.", images=0))]
TOKENS = [[[70, 71, 72, 73], [80, 81]]]
ATTENTION = ["q_proj", "v_proj"]


@pytest.fixture(scope="session")
def base_folders(text_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The text models, and one whose linear layers hold their weights transposed (`Conv1D`)."""
    tokenizer, folder = tiny_tokenizer(), tmp_path_factory.mktemp("gpt2")
    config = AutoConfig.for_model(
        "gpt2", vocab_size=-(-len(tokenizer) // 16) * 16, n_embd=64, n_layer=2, n_head=4, bos_token_id=None
    )
    model = AutoModelForCausalLM.from_config(config)
    return text_folders | {"gpt2": write_checkpoint(folder, model, tokenizer)}


@pytest.fixture
def write(base_folders: dict[str, Path], tmp_path: Path) -> Callable[..., tuple[Path, torch.Tensor]]:
    """``write(kind, config)``: a folder with an adapter whose weights are random, and peft's log-probs."""

    def make(kind: str, config: Any) -> tuple[Path, torch.Tensor]:
        model = AutoModelForCausalLM.from_pretrained(base_folders[kind])
        adapted = peft.get_peft_model(model, config).eval()
        disturb(adapted)
        folder = tmp_path / "adapter"
        adapted.save_pretrained(folder)
        prompt = Policy.load(str(base_folders[kind]), device="cpu").encode(PROBLEMS)[0].ids
        found = torch.zeros(1, 2, 4)
        with torch.no_grad():
            for g, tokens in enumerate(TOKENS[0]):
                row = torch.cat([prompt, torch.tensor(tokens)])[None]
                logits = adapted(input_ids=row).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                found[0, g, : len(tokens)] = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        return folder, found

    return make


def logprobs(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.logprobs(policy.encode(PROBLEMS), TOKENS)


def lora(**settings: Any) -> peft.LoraConfig:
    return peft.LoraConfig(**{"r": 4, "target_modules": ATTENTION, "task_type": "CAUSAL_LM"} | settings)


@yaml_cases
def test_what_is_accepted_is_right(kind: str, settings: Any, base_folders: Any, write: Any) -> None:
    """As loaded, as the reference, without the adapter, and merged to one model."""
    folder, expected = write(kind, lora(**settings))
    policy = Policy.load(str(folder), device="cpu")
    bare = logprobs(Policy.load(str(base_folders[kind]), device="cpu"))
    assert (expected - bare).abs().max() > 0.1
    torch.testing.assert_close(logprobs(policy), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logprobs(policy.without_adapter()), bare, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.01 if parameter.requires_grad else 0)
    learnt = logprobs(policy)
    assert (learnt - expected).abs().max() > 0.01
    torch.testing.assert_close(logprobs(policy.frozen_copy()), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logprobs(policy.merged()), learnt, rtol=0, atol=1e-4)
    policy.save(folder.parent / "again")
    again = Policy.load(str(folder.parent / "again"), device="cpu")
    torch.testing.assert_close(logprobs(again), learnt, rtol=0, atol=1e-4)


def test_a_merge_in_bfloat16(write: Any) -> None:
    folder, expected = write("llama", lora(target_modules=[*ATTENTION, "lm_head"]))
    adapted = Policy.load(str(folder), device="cpu", dtype="bfloat16")
    layer = adapted.model.model.layers[0].self_attn.q_proj
    exact = layer.base_layer.weight.float() + layer.get_delta_weight("default")
    merged = adapted.merged()
    assert merged.model.dtype == torch.bfloat16
    assert torch.equal(merged.model.model.layers[0].self_attn.q_proj.weight, exact.bfloat16())  # rounded once
    assert (logprobs(merged) - expected).abs().mean() < 0.25


@pytest.mark.filterwarnings("ignore")
@yaml_cases
def test_what_is_refused_is_named(kind: str, settings: Any, named: str, write: Any) -> None:
    kinds = {"LoHaConfig": peft.LoHaConfig, "IA3Config": peft.IA3Config}
    make = kinds.get(settings.get("config"), lora)
    folder, _ = write(kind, make(**{name: value for name, value in settings.items() if name != "config"}))
    with pytest.raises(ConfigError, match=rf"adapter_config\.json: .*{named}.*merge it with peft first"):
        Policy.load(str(folder), device="cpu")


def change(folder: Path, settings: dict[str, Any]) -> None:
    """Write some of an adapter's settings anew."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@yaml_cases
def test_settings_that_are_not_known_or_fit_no_layer(changed: dict[str, Any], said: str, write: Any) -> None:
    folder, _ = write("llama", lora())
    change(folder, changed)
    with pytest.raises(ConfigError, match=rf"adapter_config\.json: {said}"):
        Policy.load(str(folder), device="cpu")


def test_settings_that_are_not_known_and_off(write: Any) -> None:
    folder, expected = write("llama", lora())
    off = {"a_thing_of_2030": None, "another": False, "a_list": [], "revision": "main"}
    change(folder, off)
    torch.testing.assert_close(logprobs(Policy.load(str(folder), device="cpu")), expected, rtol=0, atol=1e-4)


def test_weights_beside_those_of_layers(write: Any) -> None:
    """Embeddings that were resized and saved whole would be dropped."""
    from safetensors.torch import load_file, save_file

    folder, _ = write("llama", lora())
    weights = load_file(folder / "adapter_model.safetensors")
    weights["base_model.model.model.embed_tokens.weight"] = torch.zeros(8, 64)
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"does not fit.*embed_tokens"):
        Policy.load(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("kind", "target", "named"),
    [
        ("qwen2", "lm_head", "lm_head.*tie_word_embeddings"),
        ("tiny", "proj", r"patch_embed\.proj.*another kind"),
    ],
)
def test_an_adapter_that_a_program_adds(load_policy: Any, kind: str, target: str, named: str) -> None:
    """It does not go through a folder, and is refused where it would be merged."""
    policy = load_policy(kind)
    policy.model.add_adapter(peft.LoraConfig(target_modules=[target]), "default")
    with pytest.raises(ConfigError, match=rf"{named}.*merge it with peft first"):
        dict(merged_parameters(policy.model))


def test_adapters_of_the_tower_are_merged(load_policy: Any, problems: list[Problem]) -> None:
    policy = load_policy(lora=AdapterConfig(rank=4), train_vision=True)
    start = policy.logprobs(policy.encode(problems), [[[7, 8, 9]]] * 3).detach()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.02 if parameter.requires_grad else 0)
        found, merged = (p.logprobs(p.encode(problems), [[[7, 8, 9]]] * 3) for p in (policy, policy.merged()))
    assert (found - start).abs().max() > 0.01
    torch.testing.assert_close(merged, found, rtol=0, atol=1e-4)


def test_a_merge_that_loses_something(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = write("llama", lora())
    policy = Policy.load(str(folder), device="cpu")
    whole = Linear.get_delta_weight
    monkeypatch.setattr(Linear, "get_delta_weight", lambda layer, name: whole(layer, name) * 0.9)
    with pytest.raises(ConfigError, match=r"gives other log-probs.*merge it with peft"):
        policy.merged()
