"""Loading weights into a live model: exact, or an error; never silently the initial weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from selfverify.core.errors import CheckpointError
from selfverify.trainer.state import load_matching

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def llama(seed: int, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(SMALL | changes)))


def assert_same(one: Any, other: Any) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("kind", ["tiny", "llama", "qwen2"])
def test_every_weight_arrives_and_parameters_stay_the_same_objects(
    load_policy: Any, tmp_path: Path, kind: str
) -> None:
    saved, live = load_policy(kind).model, load_policy(kind).model
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.mul_(1.1)
    saved.save_pretrained(tmp_path)
    parameters = list(live.parameters())
    load_matching(live, tmp_path)
    assert_same(live, saved)
    assert all(before is now for before, now in zip(parameters, live.parameters(), strict=True))


def test_mixed_precision_is_kept_exactly(tmp_path: Path) -> None:
    saved, live = llama(1).to(torch.bfloat16), llama(2).to(torch.bfloat16)
    for model in (saved, live):
        model.model.norm.to(torch.float32)
    with torch.no_grad():
        saved.model.norm.weight.add_(1e-6)
    saved.save_pretrained(tmp_path)
    load_matching(live, tmp_path)
    assert live.model.norm.weight.dtype == torch.float32
    assert_same(live, saved)


def test_names_that_do_not_match_are_listed_and_nothing_changes(tmp_path: Path) -> None:
    llama(1).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["stranger.weight"] = weights.pop("model.norm.weight")
    weights["model.embed_tokens.weight"] = torch.zeros(41, 16)
    save_file(weights, file, metadata={"format": "pt"})
    live = llama(2)
    with pytest.raises(CheckpointError) as caught:
        load_matching(live, tmp_path)
    message = str(caught.value)
    assert "1 not in the folder: model.norm.weight" in message
    assert "1 not in the model: stranger.weight" in message
    assert "1 of another shape: model.embed_tokens.weight" in message
    assert "[41, 16]" in message
    assert str(tmp_path) in message
    assert_same(live, llama(2))


def test_another_architecture_is_refused_by_both_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    MistralForCausalLM(MistralConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="holds a MistralForCausalLM, the model is a LlamaForCausalLM"):
        load_matching(llama(1), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="of type 'mistral', the model is 'llama'"):
        load_matching(llama(1), tmp_path)
