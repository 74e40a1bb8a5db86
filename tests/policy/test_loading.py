"""Loading: what does not fit is an error that names it, never silently kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.problem import Problem
from selfverify.policy.loading import pick_device
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def altered(tiny_folder: Path, tmp_path: Path) -> Callable[[Callable[[Tensors], None]], str]:
    """A copy of the tiny folder whose tensors were changed by a function."""

    def make(change: Callable[[Tensors], None]) -> str:
        folder = tmp_path / "altered"
        shutil.copytree(tiny_folder, folder)
        [file] = folder.glob("*.safetensors")
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})
        return str(folder)

    return make


def drop(part: str) -> Callable[[Tensors], None]:
    """Take away the first tensor with ``part`` in its name."""
    return lambda tensors: tensors.pop(next(name for name in sorted(tensors) if part in name))


def shrink(tensors: Tensors) -> None:
    name = next(name for name in sorted(tensors) if "layers.0.mlp.up_proj" in name)
    tensors[name] = tensors[name][:-1].clone()


def change_config(folder: str, **values: Any) -> None:
    file = Path(folder) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop("layers.1.mlp.up_proj"), r"not in the folder: .*layers\.1\.mlp\.up_proj"),
        (drop("visual.blocks.0"), r"not in the folder: .*visual\.blocks\.0"),
        (lambda tensors: tensors.update(adapter=torch.zeros(3)), "not in the model: .*adapter"),
        (shrink, r"layers\.0\.mlp\.up_proj"),
    ],
)
def test_weights_that_do_not_fit(altered: Any, change: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Policy.load(altered(change))


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_quantised_model_whose_package_is_missing(altered: Any) -> None:
    folder = altered(lambda tensors: None)
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ConfigError, match=rf"cannot load the model at '{folder}': .*bitsandbytes"):
        Policy.load(folder)


def test_unknown_architecture(altered: Any) -> None:
    folder = altered(lambda tensors: None)
    change_config(folder, model_type="never-heard-of", architectures=["NeverHeardOf"])
    with pytest.raises(ConfigError, match="never-heard-of"):
        Policy.load(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"), ("config.json", b"[]"), ("config.json", b'{"model_type": "vit"}'),
        ("model.safetensors", b"\x10"), ("config.json", None), ("model.safetensors", None),
        ("tokenizer.json", None), ("preprocessor_config.json", None),
    ],
)  # fmt: skip
def test_broken_and_missing_files(altered: Any, name: str, content: bytes | None) -> None:
    file = Path(altered(lambda tensors: None)) / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises((ConfigError, CheckpointError), match="altered"):
        Policy.load(str(file.parent))


def test_policies_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (str(tmp_path / "nowhere"), "builtin:nowhere"):
        with pytest.raises(ConfigError, match="nowhere"):
            Policy.load(path)


@pytest.mark.parametrize("name", ["digits", "digits-blind", "digits-check", "looking"])
def test_image_and_video_marks_are_tokens_of_built_in_policies(name: str) -> None:
    """vLLM looks the marks up in the tokenizer when it starts; none of them is ever sampled."""
    policy = Policy.load(f"builtin:{name}", device="cpu")
    config, tokenizer = policy.model.config, policy.tokenizer
    marks = {"<|image_pad|>": config.image_token_id, "<|video_pad|>": config.video_token_id}
    assert {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks} == marks
    assert set(marks.values()) < set(policy.suppressed_tokens)
    assert tokenizer.encode("<|video_pad|>") == [config.video_token_id]
    assert len(tokenizer) <= config.text_config.vocab_size


# --- saving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tiny", "llama", "qwen2"])
def test_save_and_load_is_the_same_policy(
    load_policy: Any, problems: list[Problem], tmp_path: Path, kind: str
) -> None:
    policy: Policy = load_policy(kind)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.save(tmp_path / "saved")
    loaded = Policy.load(tmp_path / "saved")
    tied = kind != "llama"
    for model in (policy.model, loaded.model):
        shared = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert shared == tied
    state = loaded.model.state_dict()
    assert state.keys() == policy.model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in policy.model.state_dict().items())

    shown = problems if kind == "tiny" else problems[1:2]
    outputs = []
    for each in (policy, loaded):
        prompts = each.encode(shown)
        samples = each.sample(prompts, SamplingConfig(max_new_tokens=8), seeds=range(len(shown)))
        tokens = [[s.tokens for s in group] for group in samples]
        outputs.append((tokens, [[s.logprobs for s in g] for g in samples], each.logprobs(prompts, tokens)))
    assert outputs[0][:2] == outputs[1][:2]
    assert torch.equal(outputs[0][2], outputs[1][2])


def test_frozen_copy_stays_as_it_was(load_policy: Any, problems: list[Problem]) -> None:
    policy = load_policy()
    prompts, tokens = policy.encode(problems), [[[7, 8, 9]]] * 3
    reference = policy.frozen_copy()
    before = policy.logprobs(prompts, tokens).detach()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.2)
    kept = reference.logprobs(prompts, tokens)
    assert torch.equal(kept, before) and not kept.requires_grad
    assert (policy.logprobs(prompts, tokens) - before).abs().max() > 0.1


def test_a_fresh_tiny_policy_depends_on_its_seed_alone(tmp_path: Path) -> None:
    for name, noise, seed in (("a", 1, 0), ("b", 2, 0), ("c", 2, 1)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        write_tiny(tmp_path / name, seed, hidden=96, layers=1)
        assert torch.equal(torch.get_rng_state(), state)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_each_process_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher shows each process all devices of the machine, or its own alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for seen, own in ((8, "cuda:3"), (1, "cuda:0")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda seen=seen: seen)
        assert {str(pick_device(wanted)) for wanted in ("auto", "cuda")} == {own}
    assert pick_device("cpu") == torch.device("cpu")


def test_a_missing_shard(load_policy: Any, tmp_path: Path) -> None:
    load_policy().model.save_pretrained(tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(ConfigError, match=shards[1].name):
        Policy.load(str(tmp_path), device="cpu")


def test_sizes_that_a_processor_does_not_know(tmp_path: Path) -> None:
    from benchmarks.families import write_family

    folder = write_family("internvl", tmp_path)
    with pytest.raises(ConfigError, match=r"policy\.max_pixels: .* has no such setting"):
        Policy.load(str(folder), device="cpu", max_pixels=100)
